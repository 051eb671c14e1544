"""Table rows of quarantines and fault drills, and what an ejection leaves. Pure: messages and the current time in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.parsing import SLOW
from penstock.agent.views import text
from penstock.agent.views.tables import Table
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from google.protobuf.timestamp_pb2 import Timestamp
    from penstock.proto.v1 import admin_pb2 as admin

_PARTS = {
    common.ROLE_PREFILL: ("prefill",),
    common.ROLE_DECODE: ("decode",),
    common.ROLE_ENCODER: ("encoder",),
    common.ROLE_BOTH: ("decode", "prefill"),
}
_STATES = {
    events.QUARANTINE_STATE_UNSPECIFIED: text.style("ordered, not in force", "yellow"),
    events.QUARANTINE_STATE_CLOSED: text.style("exempt", "green"),
    events.QUARANTINE_STATE_OPEN: text.style("quarantined", "red"),
    events.QUARANTINE_STATE_HALF_OPEN: text.style("probing", "yellow"),
}


def quarantines(items: Iterable[admin.Quarantine], now: float) -> Table:
    """Return the table of peers in quarantine or exempt from it."""
    return Table(
        ("ENGINE", "PEER", "STATE", "REASON", "UNTIL", "AUTHOR", "PEER-ENGINE-ID"),
        [
            (
                text.engine(item.key),
                item.peer.address,
                _STATES.get(item.state, "unknown"),
                text.one_line(item.reason) or text.NONE,
                until_words(item, now),
                item.author or text.NONE,
                item.peer.engine_id or text.NONE,
            )
            for item in items
        ],
        wide=1,
    )


def ejections(items: Iterable[admin.ServerEjection], now: float) -> Table:
    """Return the table of servers that are out of rotation, or that the leading relay has in view."""
    return Table(
        ("ENGINE", "STATE", "SINCE", "UNTIL", "BY", "WHY", "ADDRESS"),
        [
            (
                text.engine(item.key),
                _ejection_state(item),
                text.ago_of(since, now) if since is not None else text.NONE,
                text.ago_of(item.order.until, now) if item.order.HasField("until") else text.NONE,
                item.order.author or (f"policy {item.policy}" if item.policy else text.NONE),
                text.one_line(item.order.reason or item.why) or text.NONE,
                item.address or text.NONE,
            )
            for item in items
            for since in [_since(item)]
        ],
        wide=1,
    )


def _ejection_state(item: admin.ServerEjection) -> str:
    if item.HasField("order"):
        if not item.order.HasField("since"):
            return text.style("coming back", "yellow")
        return text.style("out", "red") if item.order.in_force else text.style("going out", "yellow")
    return text.style(item.verdict.replace("_", " "), "yellow") if item.verdict else text.NONE


def _since(item: admin.ServerEjection) -> Timestamp | None:
    if item.order.HasField("since"):
        return item.order.since
    return item.since if item.HasField("since") else None


def drills(items: Iterable[admin.Drill], now: float) -> Table:
    """Return the table of fault drills."""
    return Table(
        ("ID", "MODE", "RATE", "PEER", "ENDS", "AUTHOR", "ENGINES", "SELECTOR", "REASON"),
        [
            (
                item.id,
                _mode(item),
                f"{item.spec.rate:.0%}",
                item.spec.peer or "all",
                text.ago_of(item.expires, now),
                item.spec.author or text.NONE,
                ", ".join(map(_standing, item.engines)) or text.NONE,
                selector_words(item.spec.selector),
                text.one_line(item.spec.reason) or text.NONE,
            )
            for item in items
        ],
        wide=2,
    )


def drill_words(item: admin.Drill) -> str:
    """Describe a fault drill: mode, rate, peer, engines, duration."""
    peer = f"with {item.spec.peer}" if item.spec.peer else "with all peers"
    length = text.age(item.spec.ttl.ToNanoseconds() / 1e9)
    where = selector_words(item.spec.selector)
    return f"{_mode(item)}, {item.spec.rate:.0%} of the attempts {peer}, engines {where}, for {length}"


def selector_words(selector: admin.EngineSelector) -> str:
    """Describe the engines of a selector."""
    parts = [selector.labels, *selector.models, *map(text.engine, selector.engines)]
    return " ".join(filter(None, parts)) or "all"


def _mode(item: admin.Drill) -> str:
    if item.spec.mode:
        return text.word(common.FailureMode, item.spec.mode)
    return f"{SLOW} by {text.span_of_time(item.spec.delay.ToNanoseconds() / 1e9)}"


def until_words(item: admin.Quarantine, now: float) -> str:
    """Return when a quarantine ends: ``in 59m``, at the next request, or with the engine id."""
    if item.HasField("until"):
        # After its end, the next request probes the peer.
        return text.ago_of(item.until, now) if item.until.ToNanoseconds() / 1e9 > now else "next request"
    return "its engine id changes"


def _standing(engine: admin.EngineRollout) -> str:
    state = "running" if engine.state == "acknowledged" else engine.state
    return f"{text.engine(engine.key)} {state}{': ' if engine.error else ''}{text.one_line(engine.error)}"


def emptied_pools(engines: Iterable[admin.Engine], servers: Collection[str]) -> list[str]:
    """Return the pools that have no server in rotation any more once *servers* are out, and have one now.

    A pool is the servers of one part and model: ``prefill servers of tiny``. Who knows one server alone knows no pool.

    Args:
        engines: all that are known.
        servers: names.

    """
    connected = [each for each in engines if each.connected]
    if len({each.key.server for each in connected}) <= 1:
        return []
    before: set[str] = set()
    after: set[str] = set()
    for each in connected:
        if not each.HasField("ejection"):
            before.update(pools_of(each))
            after.update(pools_of(each) if each.key.server not in servers else ())
    return sorted(before - after)


def pools_of(engine: admin.Engine) -> list[str]:
    """Return the pools of an engine: ``prefill servers of tiny``; none where its role is not known."""
    model = text.one_line(engine.facts.model)
    return [f"{part} servers{f' of {model}' if model else ''}" for part in _PARTS.get(engine.role, ())]
