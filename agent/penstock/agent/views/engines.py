"""Table rows of engines, peers, events and the audit log. Pure: messages and the current time in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.views import peers as latency
from penstock.agent.views import text
from penstock.agent.views.events import event_peer, logged_words
from penstock.proto.names import ENGINE_CORE
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.snapshot_pb2 import Hook, PeerStatus

_WHOLE = 4096
"""Maximum characters of an event's text under ``-o wide``."""

_LONGEST_PARTS = 400
"""Maximum characters of all that a hook does without."""


class Table(NamedTuple):
    """Headers and rows; the last *wide* columns are for ``-o wide`` only."""

    headers: tuple[str, ...]
    rows: list[tuple[str, ...]]
    wide: int = 0

    def narrow(self) -> Table:
        """Return the table without the wide columns."""
        if not self.wide:
            return self
        return Table(self.headers[: -self.wide], [row[: -self.wide] for row in self.rows])


def engines(items: Iterable[admin.Engine], now: float) -> Table:
    """Return the table of engines."""
    return Table(
        ("ENGINE", "ROLE", "STATUS", "POLICY", "KV-ACTION", "EC-ACTION", "IN-SYNC", "DEFERRED", "IN-FLIGHT", "LAST-SEEN",
         "MODEL", "VLLM", "KV-CONNECTOR", "LABELS"),
        [
            (
                text.engine(item.key),
                role_words(item),
                status_words(item, now),
                _policy(item),
                action_words(item),
                _ec_action(item),
                _yes(item.in_sync),
                str(sum(entry.count for entry in item.deferred)),
                str(sum(entry.count for entry in item.in_flight)),
                text.ago_of(item.last_seen, now),
                _model(item),
                _vllm(item),
                item.facts.kv_connector or text.NONE,
                ",".join(f"{key}={value}" for key, value in sorted(item.labels.items())) or text.NONE,
            )
            for item in items
        ],
        wide=4,
    )  # fmt: skip


def peers(items: Iterable[admin.PeerSummary], now: float) -> Table:
    """Return the table of peers, a row for each engine and peer; windows are p50/p99.

    Without the wide columns it fits 120 characters.
    """
    return Table(
        ("ENGINE", "PEER", "ADDRESS", "NOW", "SINCE", "WAIT-1M",
         "WHY", "STATUS", "OK", "FAILED", "WAIT-15M", "WAIT-HOUR", "TRANSFER-1M", "TRANSFER-15M", "TRANSFER-HOUR", "MEAN",
         "IN-FLIGHT", "OLDEST", "DEFERRED", "LONGEST", "FAILURES", "LAST-FAILURE", "PEER-ENGINE-ID"),
        [
            (
                text.engine(item.key),
                peer_name(item) or text.NONE,
                item.peer.address,
                latency.styled_condition(item),
                latency.since(item, now),
                latency.window(item.waits.last_minute),
                item.condition_reason or text.NONE,
                peer_status(item),
                str(item.transfers_ok),
                str(failed_attempts(item)),
                latency.window(item.waits.last_15_minutes),
                latency.window(item.waits.hour_before),
                latency.window(item.transfers.last_minute),
                latency.window(item.transfers.last_15_minutes),
                latency.window(item.transfers.hour_before),
                text.span_of_time(item.mean_duration_seconds) if item.transfers_ok else text.NONE,
                str(item.in_flight),
                text.ago_of(item.oldest_in_flight, now),
                str(item.deferred),
                text.ago_of(item.oldest_deferred, now),
                failure_words(item),
                text.ago_of(item.last_failure, now),
                item.peer.engine_id or text.NONE,
            )
            for item in items
        ],
        wide=17,
    )  # fmt: skip


def peer_name(item: admin.PeerSummary) -> str:
    """Return the name of the engine at a peer's address; empty if it is not known."""
    return text.engine(item.engine) if item.HasField("engine") else ""


def peer_words(item: admin.PeerSummary) -> str:
    """Return a peer's address, behind the name of the engine there if it is known."""
    name = peer_name(item)
    return f"{name} ({item.peer.address})" if name else item.peer.address


def logged_events(items: Iterable[admin.LoggedEvent], now: float, *, wide: bool = False) -> Table:
    """Return the table of events; *wide*: with their whole text."""
    return Table(
        ("AGE", "ENGINE", "KIND", "REQUEST", "PEER", "WHAT", "PROCESS", "POSITION"),
        [
            (
                text.ago(item.event.time_unix_nano, now).removesuffix(" ago"),
                text.engine(item.key),
                item.event.WhichOneof("body") or "unknown",
                item.event.request_id or text.NONE,
                event_peer(item.event),
                logged_words(item, _WHOLE) if wide else logged_words(item),
                item.process,
                f"{item.batch}/{item.index}",
            )
            for item in items
        ],
        wide=2,
    )


def audit(items: Iterable[admin.AuditEntry], now: float) -> Table:
    """Return the table of audit entries."""
    return Table(
        ("AGE", "AUTHOR", "ACTION", "NAME", "GENERATION", "REASON", "OLD-HASH", "NEW-HASH"),
        [
            (
                text.ago_of(item.time, now).removesuffix(" ago"),
                item.author or text.NONE,
                item.action,
                item.name,
                f"{item.old_generation or 'none'} → {item.new_generation}"
                if item.new_generation
                else text.NONE,
                text.one_line(item.reason) or text.NONE,
                item.old_hash[:12] or text.NONE,
                item.new_hash[:12] or text.NONE,
            )
            for item in items
        ],
        wide=2,
    )


def role_words(item: admin.Engine) -> str:
    """Return an engine's role, with a question mark if it was guessed."""
    role = text.word(common.Role, item.role)
    return f"{role}?" if item.role_guessed and item.role else role


def parts_words(hook: Hook) -> str:
    """Return what an installed hook does without, as text; empty for nothing."""
    parts = hook.missing_parts if hook.installed else ()
    lost = (text.one_line(part.lost or part.name) for part in parts)
    return text.one_line(", ".join(each for each in lost if each), _LONGEST_PARTS)


def cores(item: admin.Engine) -> list[admin.Source]:
    """Return the connected EngineCores of one name; more than one is a configuration error."""
    # One that begins a new epoch may have two sources for a moment.
    found = {
        (source.hello.pid, source.hello.start_time_unix_nano): source
        for source in item.sources
        if source.connected and source.hello.process == ENGINE_CORE
    }
    return list(found.values())


def action_words(item: admin.Engine) -> str:
    """Return the action for failed KV loads; while paused, the one that would be in force."""
    if item.paused and item.wanted_kv_action:
        return text.paused(item.wanted_kv_action)
    return item.policy.kv_action or text.NONE


def _ec_action(item: admin.Engine) -> str:
    if item.paused and item.wanted_ec_action:
        return text.paused(item.wanted_ec_action)
    return item.policy.ec_action or text.NONE


def _policy(item: admin.Engine) -> str:
    if item.paused and item.wanted_hash:
        return text.paused(text.short_policies(item.wanted_policies, item.wanted_hash))
    return text.short_policies(item.policies, item.policy.hash) if item.HasField("policy") else text.NONE


def is_stopped(item: admin.Engine) -> bool:
    """Return whether an engine is away because it was stopped on purpose."""
    return item.said_goodbye and not item.connected


def status_words(item: admin.Engine, now: float) -> str:
    """Return an engine's status: connected, disconnected, stopped, paused with the end of the pause, or a shared name."""
    if is_stopped(item):
        return "stopped"
    if not item.connected:
        return text.style("disconnected", "red")
    if (number := len(cores(item))) > 1:
        return text.style(f"{number} share a name", "red")
    if not item.paused:
        return text.style("connected", "green")
    ends = f", {text.pause_end(item.pause, now)}" if item.pause.HasField("until") else ""
    return text.style(f"paused{ends}", "yellow")


def failed_attempts(item: admin.PeerSummary) -> int:
    """Return the failures of a peer; a failed handshake counts no transfer."""
    return max(item.transfers_failed, sum(entry.count for entry in item.failures))


def failure_words(item: admin.PeerSummary) -> str:
    """Return a peer's failures by mode and error type."""
    return (
        ", ".join(
            f"{text.word(common.FailureMode, entry.mode)}/{text.word(common.ErrorType, entry.error_type)} {entry.count}"
            for entry in item.failures
        )
        or text.NONE
    )


def peer_status(item: admin.PeerSummary) -> str:
    """Return a peer's status: connected or not, known to vLLM as invalid, in quarantine."""
    if not item.HasField("status"):
        return text.NONE
    parts = ["connected" if item.status.connected else "not connected"]
    if item.status.upstream_invalid:
        parts.append("invalid to vllm")
    if item.status.quarantine > events.QUARANTINE_STATE_CLOSED:
        parts.append(quarantine_words(item.status))
    return ", ".join(parts)


def quarantine_words(status: PeerStatus) -> str:
    """Return the quarantine state of a peer."""
    return text.quarantine_state(status.quarantine)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _model(item: admin.Engine) -> str:
    return item.facts.model or next(
        (source.hello.model for source in item.sources if source.hello.model), text.NONE
    )


def _vllm(item: admin.Engine) -> str:
    return item.facts.vllm_version or next(
        (source.hello.vllm_version for source in item.sources if source.hello.vllm_version), text.NONE
    )
