"""The calls about fault drills."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.agent.admin.lookups import (
    author_and_reason,
    checked_peer,
    checked_ttl,
    known_engines,
    messages,
    new_order_id,
    selected_targets,
    selection_of,
    subscribed_engines,
    timedelta_of,
)
from penstock.agent.errors import ContractError, ImpossibleError
from penstock.agent.parsing import DRILL_MODES, SLOW, format_duration
from penstock.agent.policy.distribution import delivery_progress
from penstock.agent.policy.orders import MAX_DELAY, MAX_DRILL, FaultDrill
from penstock.proto.names import label, number
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from penstock.agent.admin.lookups import AgentContext
    from penstock.agent.policy.distribution import Subscriber

# By channel: mode labels by their numbers.
_MODES = {
    number(common.Channel, channel): {
        common.FAILURE_MODE_UNSPECIFIED if word == SLOW else number(common.FailureMode, word): word
        for word in words
    }
    for channel, words in DRILL_MODES.items()
}
_NOT_ALLOWED = "not started with PENSTOCK_ALLOW_FAULTS=1"


async def start_drill(agent: AgentContext, request: admin.StartDrillRequest) -> admin.Drill:
    """Start a drill in all selected engines, or in none."""
    drill = _drill(agent, request)
    subscribers = list(subscribed_engines(agent, selected_targets(agent, drill.selection)))
    if not subscribers:
        raise ImpossibleError("none of the selected engines is connected; 'agentctl get engines' shows them")
    for subscriber in subscribers:
        if not subscriber.faults_allowed:
            raise ImpossibleError(
                f"engine {subscriber.target.key} does not allow faults: {_NOT_ALLOWED} in its environment; "
                "restart it with that, or exclude it with --selector"
            )
    await agent.orders.start_drill(drill)
    return _message(agent, drill)


async def stop_drill(agent: AgentContext, request: admin.StopDrillRequest) -> admin.Drill:
    """Stop a drill before its time to live ends."""
    return _message(agent, await agent.orders.stop_drill(request.id, author=request.author))


async def list_drills(agent: AgentContext, _: admin.ListDrillsRequest) -> admin.ListDrillsResponse:
    """Return the running drills with their state in each engine."""
    return admin.ListDrillsResponse(drills=[_message(agent, drill) for drill in agent.orders.drills()])


def _drill(agent: AgentContext, request: admin.StartDrillRequest) -> FaultDrill:
    """Validate a request; the engines check the same bounds."""
    channel = request.channel or common.CHANNEL_KV
    modes = _MODES.get(channel)
    if modes is None:
        raise ContractError(
            f"channel {label(common.Channel, channel)} cannot be injected; use channel kv or ec, or omit it"
        )
    if request.mode not in modes:
        raise ContractError(
            f"mode {label(common.FailureMode, request.mode)} of channel {label(common.Channel, channel)} cannot be "
            f"injected; use one of {', '.join(modes.values())}"
        )
    if not 0 < request.rate <= 1:
        raise ContractError(
            f"rate {request.rate:g} is not a share of attempts; use a number above 0 and up to 1, such as 0.2"
        )
    delay, slow = timedelta_of(request.delay), not request.mode
    if slow != bool(delay) or not timedelta() <= delay <= MAX_DELAY:
        raise ContractError(
            f"delay {format_duration(delay)} is not valid for mode {modes[request.mode]}; "
            "use up to 60s with mode slow, and none with other modes"
        )
    began = agent.orders.now_unix_nano
    return FaultDrill(
        id=new_order_id(),
        selection=selection_of(request.selector),
        **author_and_reason(request.author, request.reason),
        began_unix_nano=began,
        ends_unix_nano=began + checked_ttl(request.ttl, MAX_DRILL, "a fault drill"),
        channel=channel,
        mode=request.mode,
        rate=request.rate,
        peer=checked_peer(request.peer) if request.peer else "",
        delay_nano=request.delay.ToNanoseconds(),
    )


def drill_message(drill: FaultDrill) -> admin.Drill:
    """Return a drill without its engines."""
    message = admin.Drill(
        id=drill.id,
        spec=admin.StartDrillRequest(
            selector=messages.selector_message(drill.selection),
            channel=drill.channel,  # type: ignore[arg-type]
            mode=drill.mode,  # type: ignore[arg-type]
            rate=drill.rate,
            peer=drill.peer,
            author=drill.author,
            reason=drill.reason,
        ),
        started=messages.timestamp_message(drill.began_unix_nano),
        expires=messages.timestamp_message(drill.ends_unix_nano),
    )
    message.spec.ttl.FromNanoseconds(drill.ends_unix_nano - drill.began_unix_nano)
    if drill.delay_nano:
        message.spec.delay.FromNanoseconds(drill.delay_nano)
    return message


def _message(agent: AgentContext, drill: FaultDrill) -> admin.Drill:
    message = drill_message(drill)
    for engine in delivery_progress(agent.feed, known_engines(agent), drill.selection, agent.clock()):
        entry = messages.engine_delivery(engine)
        subscriber = agent.feed.subscriber(engine.key)
        if entry.state != "contested" and subscriber is not None and subscriber.connected:
            entry.state, entry.error, entry.field = _standing(subscriber, drill)
        message.engines.append(entry)
    return message


def _standing(subscriber: Subscriber, drill: FaultDrill) -> tuple[str, str, str]:
    """Return state, error and field of a drill in a connected engine, whatever the state of its policy."""
    error = subscriber.order_error(drill.id) if subscriber.faults_allowed else _NOT_ALLOWED
    if error is None:
        return "waiting", "", ""
    return ("refused", error, "") if error else ("paused" if subscriber.paused else "acknowledged", "", "")
