"""Entries of the log as the page lists them, and the messages of the event stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.agent.page.wire import (
    MAX_MESSAGE_BYTES,
    about,
    command,
    encode,
    hidden_name,
    milliseconds,
    plain,
)
from penstock.agent.views import text
from penstock.agent.views.events import event_peer, logged_words
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.proto.v1 import admin_pb2 as admin

KINDS = (
    "transfer_failure",
    "load_outcome",
    "policy_applied",
    "quarantine_changed",
    "eplb_rebalance",
    "source_lost",
    "source_stopped",
    "server_stopping",
    "transfer_delayed",
    "blocks_pinned",
    "kv_caches_released",
    "rotation_changed",
    "forgotten",
    "answer_suspected",
)
"""The kinds of entries that the page lists: failures and changes."""

_ERRORS = frozenset({"source_lost", "answer_suspected", "transfer_failure"})
_WARNINGS = frozenset({"transfer_delayed", "blocks_pinned"})
_NO_PEER = "-"
_MAX_SENTENCE = 300
_MAX_POLICIES = 4


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry.

    Attributes:
        position: what ``agentctl get events -o wide`` calls so, behind a relay after the agent's name.
        request_id: the id itself where *request* shows it otherwise, for addresses only; empty elsewhere.
        policies: of a change of policy, the names of those that came, changed or went; the first of them.

    """

    position: str
    time: float
    engine: str
    peer: str
    request: str
    kind: str
    mode: str
    severity: str
    sentence: str
    command: str
    request_id: str = ""
    policies: tuple[str, ...] = ()


def log_entry(item: admin.LoggedEvent) -> LogEntry:
    """Return the entry of an event of the log."""
    event = item.event
    kind = event.WhichOneof("body") or "unknown"
    body = getattr(event, kind, None)
    peer, mode = event_peer(event), getattr(body, "mode", 0)
    place = f"{item.batch}/{item.index}"
    return LogEntry(
        position=plain(f"{item.agent} {place}" if item.agent else place),
        time=milliseconds(event.time_unix_nano),
        engine=plain(text.engine(item.key)),
        peer="" if peer == _NO_PEER else plain(peer),
        request=plain(event.request_id),
        kind=kind,
        mode=text.word(common.FailureMode, mode) if mode else "",
        severity=_severity(kind, event),
        sentence=plain(logged_words(item, _MAX_SENTENCE)),
        command=_command(event, peer),
        request_id=hidden_name(event.request_id),
        policies=_changed_policies(item) if kind == "policy_applied" else (),
    )


def _changed_policies(item: admin.LoggedEvent) -> tuple[str, ...]:
    now, before = (
        {policy.name: policy.generation for policy in policies}
        for policies in (item.policies, item.previous_policies)
    )
    changed = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
    return tuple(plain(name) for name in changed[:_MAX_POLICIES])


def _severity(kind: str, event: events.Event) -> str:
    if event.rehearsal:
        return "info"
    match kind:
        case "load_outcome":
            return "error" if event.load_outcome.outcome == common.OUTCOME_FAILED else "warning"
        case "policy_applied":
            return "info" if event.policy_applied.accepted else "error"
        case "quarantine_changed":
            opens = event.quarantine_changed.state == events.QUARANTINE_STATE_OPEN
            return "warning" if opens else "info"
        case "eplb_rebalance":
            return "info" if event.eplb_rebalance.result == common.TRANSFER_RESULT_OK else "error"
    return "error" if kind in _ERRORS else "warning" if kind in _WARNINGS else "info"


def _command(event: events.Event, peer: str) -> str:
    if event.request_id:
        return about("explain", name=event.request_id)
    if peer != _NO_PEER:
        return about("describe", "peer", name=peer)
    return command("get", "events", "--since", "15m")


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is sent.

    Attributes:
        event: its name.
        data: JSON on one line.
        id: the position after it; empty for none.

    """

    event: str
    data: bytes
    id: str = ""

    def encoded(self) -> bytes:
        """Return it as an event stream has it."""
        head = f"id: {self.id}\n" if self.id else ""
        return f"{head}event: {self.event}\ndata: ".encode() + self.data + b"\n\n"


def message(event: str, value: Any, id_: str = "") -> Message:
    """Return the message of *value*."""
    return Message(event, encode(value), id_)


class Part(NamedTuple):
    """Entries that fit into one message, and it."""

    message: Message
    entries: Sequence[LogEntry]


def parts(event: str, entries: Sequence[LogEntry], most: int = MAX_MESSAGE_BYTES) -> list[Part]:
    """Return the messages of *entries*, each of *most* bytes at most but for one of a single entry."""
    if not entries:
        return []
    whole = Part(message(event, {"entries": entries}), entries)
    if len(entries) == 1 or len(whole.message.data) <= most:
        return [whole]
    half = len(entries) // 2
    return [*parts(event, entries[:half], most), *parts(event, entries[half:], most)]
