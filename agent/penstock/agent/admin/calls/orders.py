"""The calls about operator orders: quarantines and fault drills; the state of peers in each engine."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.agent.admin.calls.events import read_in_turn
from penstock.agent.admin.lookups import (
    author_and_reason,
    check_engine_names,
    checked_peer,
    checked_ttl,
    known_engines,
    last_snapshots,
    messages,
    new_order_id,
    selected_targets,
    selected_views,
    selection_of,
    subscribed_engines,
    targets_by_key,
    timedelta_of,
)
from penstock.agent.aio import ThreadYield
from penstock.agent.errors import ContractError, ImpossibleError
from penstock.agent.parsing import DRILL_MODES, SLOW, Selection, format_duration, select
from penstock.agent.policy.distribution import delivery_progress
from penstock.agent.policy.orders import (
    MAX_DELAY,
    MAX_DRILL,
    MAX_EJECTION,
    MAX_QUARANTINE,
    Ejection,
    FaultDrill,
    QuarantineOrder,
)
from penstock.proto.names import FRONT_END, label, number
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.common_pb2 import Peer
from penstock.proto.v1.events_pb2 import (
    QUARANTINE_STATE_CLOSED,
    QUARANTINE_STATE_HALF_OPEN,
    QUARANTINE_STATE_OPEN,
    QUARANTINE_STATE_UNSPECIFIED,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.agent.admin.lookups import AgentContext, PeerKey
    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey
    from penstock.agent.policy.distribution import Subscriber
    from penstock.agent.sources import EngineView
    from penstock.proto.v1.snapshot_pb2 import PeerStatus, Snapshot

_CUT_OFF = (QUARANTINE_STATE_OPEN, QUARANTINE_STATE_HALF_OPEN)
# Log entries searched for the reason of a quarantine.
_CHANGES_READ = 2000


# By channel: mode labels by their numbers.
_MODES = {
    number(common.Channel, channel): {
        common.FAILURE_MODE_UNSPECIFIED if word == SLOW else number(common.FailureMode, word): word
        for word in words
    }
    for channel, words in DRILL_MODES.items()
}
# The hook of a front end that answers ``/health?penstock=ready``.
_READINESS = "readiness"
_NOT_ALLOWED = "not started with PENSTOCK_ALLOW_FAULTS=1"


async def set_quarantine(agent: AgentContext, request: admin.SetQuarantineRequest) -> admin.Quarantine:
    """Quarantine a peer, or end its quarantine and exempt it, until the ttl ends."""
    if request.state not in (QUARANTINE_STATE_OPEN, QUARANTINE_STATE_CLOSED):
        raise ContractError("state must be OPEN (quarantine the peer) or CLOSED (lift its quarantine)")
    selection = selection_of(request.selector)
    adds = request.state == QUARANTINE_STATE_OPEN
    began = agent.orders.now_unix_nano
    ttl = checked_ttl(request.ttl, MAX_QUARANTINE, "a quarantine order")
    order = QuarantineOrder(
        id=new_order_id(),
        selection=selection,
        **author_and_reason(request.author, request.reason),
        began_unix_nano=began,
        ends_unix_nano=began + ttl,
        peer=checked_peer(request.peer),
        quarantined=adds,
    )
    _check_engines(agent, selection, adds=adds)
    await agent.orders.set_quarantine(order)
    return _ordered(order, request.state)


async def set_ejection(agent: AgentContext, request: admin.SetEjectionRequest) -> admin.SetEjectionResponse:
    """Take the servers of the selected engines out of rotation until the ttl ends, or without one end their orders."""
    selection = selection_of(request.selector)
    ejects = request.HasField("ttl")
    if ejects and selection.everything:
        raise ContractError(
            "this takes all servers of the agent out of rotation; name engines, or select them"
        )
    servers = {target.key.server for target in selected_targets(agent, selection)}
    views = [view for view in agent.registry.engines() if view.key.server in servers]
    began = agent.orders.now_unix_nano
    given = author_and_reason(request.author, request.reason)
    orders = []
    if ejects:
        ttl = checked_ttl(request.ttl, MAX_EJECTION, "an order out of rotation")
        for view in views:
            _check_front_ends(view)
        orders = [
            Ejection(
                id=new_order_id(),
                selection=Selection(keys=frozenset(view.key for view in views if view.key.server == server)),
                server=server,
                **given,
                began_unix_nano=began,
                ends_unix_nano=began + ttl,
            )
            for server in sorted(servers)
        ]
    if not ejects:
        ordered = {order.server for order in agent.orders.ejections()}
        views = [view for view in views if view.key.server in ordered or _is_out(view)]
    keys = [view.key for view in views]
    await agent.orders.set_ejections(orders, servers, **given)
    return admin.SetEjectionResponse(engines=map(messages.key_message, keys))


def _is_out(view: EngineView) -> bool:
    """Whether a front end of its server has not followed the end of an order yet."""
    return any(
        live.connected and live.snapshot is not None and live.snapshot.out_of_rotation_until_unix_nano
        for live in view.sources
        if live.source.process == FRONT_END
    )


def _check_front_ends(view: EngineView) -> None:
    for live in view.sources:
        if not live.connected or live.source.process != FRONT_END or live.snapshot is None:
            continue
        hook = next((hook for hook in live.snapshot.hooks if hook.name == _READINESS), None)
        if hook is None or not hook.installed:
            why = f" ({hook.reason})" if hook is not None and hook.reason else ""
            raise ImpossibleError(
                f"the API server of engine {view.key} cannot answer for its readiness{why}; "
                "'agentctl describe engine' shows its hooks"
            )


async def list_quarantines(
    agent: AgentContext, request: admin.ListQuarantinesRequest
) -> admin.ListQuarantinesResponse:
    """Return the peers that are quarantined or exempt in each selected engine."""
    selection = selection_of(request.selector)
    if selection.keys:
        check_engine_names(agent, selection)
    # Tens of thousands of peers take longer than the loop may stand still.
    reported = await asyncio.to_thread(_reported, last_snapshots(selected_views(agent, selection)))
    ordered = _orders(agent, selection)
    # An order has its own.
    reasons = await read_in_turn(agent, _reasons) if reported.keys() - ordered.keys() else {}
    found = [
        _row(agent, peer, reported.get(peer), ordered.get(peer), reasons.get(peer, ""))
        for peer in sorted(reported.keys() | ordered.keys())
    ]
    if selection.everything:
        found += _waiting(agent)
    return admin.ListQuarantinesResponse(quarantines=found)


def _check_engines(agent: AgentContext, selection: Selection, *, adds: bool) -> None:
    everything = selection.everything
    found = list(targets_by_key(agent).values()) if everything else selected_targets(agent, selection)
    for subscriber in subscribed_engines(agent, found):
        if adds and not subscriber.takes_quarantines:
            raise ImpossibleError(
                f"engine {subscriber.target.key} cannot quarantine peers: its connector or its version of Penstock "
                "does not support it; exclude it with --selector"
            )


def _reported(snapshots: Mapping[EngineKey, Sequence[Snapshot]]) -> dict[PeerKey, PeerStatus]:
    """Return the peers that their engines have cut off. On a thread of its own."""
    found: dict[PeerKey, PeerStatus] = {}
    let_go = ThreadYield()
    for key, sent in snapshots.items():
        let_go()
        for snapshot in sent:
            for status in snapshot.peers:
                if status.quarantine in _CUT_OFF:
                    found[key, status.peer.address] = status
    return found


def _orders(agent: AgentContext, selection: Selection) -> dict[PeerKey, QuarantineOrder]:
    if not agent.orders.quarantines():
        return {}
    return {
        (target.key, order.peer): order
        for target in select(targets_by_key(agent).values(), selection)
        for order in agent.orders.quarantines_for(target)
    }


def _reasons(reader: Reader) -> dict[PeerKey, str]:
    """Return the reason of each peer's state, from the newest changes of the log."""
    found: dict[PeerKey, str] = {}
    keys = {source.epoch: source.key for source in reader.sources()}
    for logged, index in reader.scan(kinds=["quarantine_changed"], limit=_CHANGES_READ):
        event = reader.parse(logged).events[index]
        change, key = event.quarantine_changed, keys.get(logged.epoch)
        if key is not None:
            reason = f"{change.reason} [drill]" if event.rehearsal else change.reason
            found.setdefault((key, change.peer.address), reason)
    return found


def _row(
    agent: AgentContext,
    place: PeerKey,
    status: PeerStatus | None,
    order: QuarantineOrder | None,
    reason: str,
) -> admin.Quarantine:
    key, address = place
    if order is None:
        row = admin.Quarantine(peer=Peer(address=address), reason=reason)
    else:
        row = _ordered(order, _state_of(agent, place, order))
    row.key.CopyFrom(messages.key_message(key))
    if status is not None:
        # An acknowledged order is newer than the snapshot.
        row.state = row.state or status.quarantine
        row.peer.engine_id = status.peer.engine_id
        if order is None and status.quarantine_until_unix_nano:
            row.until.FromNanoseconds(status.quarantine_until_unix_nano)
    return row


def ordered_states(agent: AgentContext, selection: Selection) -> dict[PeerKey, int]:
    """Return the state of peers in the selected engines, by the orders that these acknowledged."""
    states = {place: _state_of(agent, place, order) for place, order in _orders(agent, selection).items()}
    return {place: state for place, state in states.items() if state}


def _state_of(agent: AgentContext, place: PeerKey, order: QuarantineOrder) -> int:
    """Return the state that an order sets in an engine; unspecified until the engine acknowledges it."""
    subscriber = agent.feed.subscriber(place[0])
    if subscriber is None or subscriber.paused or subscriber.order_error(order.id) != "":
        return QUARANTINE_STATE_UNSPECIFIED
    return QUARANTINE_STATE_OPEN if order.quarantined else QUARANTINE_STATE_CLOSED


def _waiting(agent: AgentContext) -> Iterator[admin.Quarantine]:
    """Yield the orders that no present engine matches."""
    orders = agent.orders.quarantines()
    present = list(targets_by_key(agent).values()) if orders else []
    for order in orders:
        if order.left_nano(agent.orders.now_unix_nano) and not select(present, order.selection):
            yield _ordered(order, QUARANTINE_STATE_UNSPECIFIED)


def _ordered(order: QuarantineOrder, state: int) -> admin.Quarantine:
    return admin.Quarantine(
        peer=Peer(address=order.peer),
        state=state,  # type: ignore[arg-type]
        reason=order.reason or "operator",
        until=messages.timestamp_message(order.ends_unix_nano),
        author=order.author,
    )


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
