"""Table rows of engines, peers, events and the audit log. Pure: messages and the current time in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.views import text
from penstock.agent.views.tables import Table
from penstock.proto.names import ENGINE_CORE
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.snapshot_pb2 import Hook


_LONGEST_PARTS = 400
"""Maximum characters of all that a hook does without."""


def engine_rows(items: Iterable[admin.Engine], now: float) -> Table:
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
