"""Finds engines in which every load fails because a policy or an order says so. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.ctl.diagnosis.findings import WRONG, Finding
from penstock.agent.ctl.render import text
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.proto.v1 import admin_pb2 as admin

WINDOW_NANO = 600_000_000_000
"""How long ago the last failed load may be, and since when none may have succeeded."""
_FAIL = "fail"
_FILE = "file:"
_FLAGS = {"kv": "--kv-load-failure", "ec": "--ec-load-failure"}


class Orders(NamedTuple):
    """The operators' orders in force."""

    drills: Sequence[admin.Drill] = ()
    quarantines: Sequence[admin.Quarantine] = ()


NO_ORDERS = Orders()


class _Cause(NamedTuple):
    """What makes the loads fail, since when (nanoseconds, 0 for unknown), and what undoes it."""

    what: str
    since: int
    advice: str


def load_findings(engine: admin.Engine, subject: str, orders: Orders, now: float) -> Iterator[Finding]:
    """Yield a finding for each channel of a connected engine in which nothing but failures was decided.

    Args:
        engine: the agent's view of it.
        subject: its name in the finding.
        orders: drills and quarantines.
        now: the agent's clock.

    """
    if engine.paused:
        return
    for loads in engine.last_loads:
        cause = _cause(engine, loads, orders)
        if cause is None:
            continue
        begin = max(int(now * 1e9) - WINDOW_NANO, cause.since)
        other = max(loads.succeeded_time_unix_nano, loads.recomputed_time_unix_nano)
        if not other < begin <= loads.failed_time_unix_nano:
            continue
        channel, since = text.word(common.Channel, loads.channel).upper(), text.ago(begin, now)
        told = f", since {text.ago(cause.since, now)}" if cause.since else ""
        what = f"no {channel} load has succeeded since {since}: {cause.what}{told}"
        yield Finding(WRONG, subject, what, cause.advice)


def _cause(engine: admin.Engine, loads: admin.LastLoads, orders: Orders) -> _Cause | None:
    """Return what says that loads fail; None if nothing does, so that they fail for reasons of their own."""
    if loads.rehearsal:
        for drill in orders.drills:
            if any(each.key == engine.key for each in drill.engines):
                return _Cause(
                    f"fault drill {drill.id}, by {drill.spec.author or 'unknown'}, makes them fail",
                    drill.started.ToNanoseconds(),
                    f"agentctl drill stop {drill.id}",
                )
    if loads.decided_by == common.DECIDED_BY_QUARANTINE:
        for order in orders.quarantines:
            if order.key == engine.key and order.author and order.state == events.QUARANTINE_STATE_OPEN:
                return _Cause(
                    f"{order.author} put peer {order.peer.address} in quarantine",
                    0,
                    f"agentctl quarantine lift {order.peer.address} {text.engine(engine.key)}",
                )
    return _policy(engine, loads)


def _policy(engine: admin.Engine, loads: admin.LastLoads) -> _Cause | None:
    channel = text.word(common.Channel, loads.channel)
    action = engine.policy.kv_action if loads.channel == common.CHANNEL_KV else engine.policy.ec_action
    field = f"{channel}LoadFailure.action"
    source = next((policy for policy in engine.policies if field in policy.fields), None)
    if action != _FAIL or source is None:
        return None
    what = f"policy {text.policies([source], '')} says {field}: {_FAIL}"
    return _Cause(what, source.changed_time_unix_nano, _undo(source, channel))


def _undo(source: common.PolicySource, channel: str) -> str:
    if source.author.startswith(_FILE):
        file = source.author.removeprefix(_FILE)
        return (
            f"change {channel}LoadFailure.action in the file {file}; for a time: agentctl set-policy {source.name[:50]}-now "
            f"{_FLAGS[channel]} recompute --priority 900 --ttl 1h --reason WHY, with its selector"
        )
    before = (
        f"agentctl rollback {source.name}"
        if source.generation > 1
        else f"agentctl delete policy {source.name}"
    )
    return (
        f"{before} undoes it; agentctl set-policy {source.name} {_FLAGS[channel]} recompute changes only this; "
        "agentctl get peers shows why loads fail at all"
    )
