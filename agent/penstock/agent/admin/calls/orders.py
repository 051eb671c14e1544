"""The calls about quarantine: operator orders, and the state of peers in each engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.agent.admin.calls.events import read_in_turn
from penstock.agent.admin.lookups import (
    author_and_reason,
    check_engine_names,
    checked_peer,
    checked_ttl,
    last_snapshots,
    messages,
    new_order_id,
    selected_targets,
    selected_views,
    selection_of,
    subscribed_engines,
    targets_by_key,
)
from penstock.agent.aio import LetGo
from penstock.agent.errors import ContractError, ImpossibleError
from penstock.agent.parsing import select
from penstock.agent.policy.orders import MAX_QUARANTINE, QuarantineOrder
from penstock.proto.v1 import admin_pb2 as admin
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
    from penstock.agent.parsing import Selection
    from penstock.proto.v1.snapshot_pb2 import PeerStatus, Snapshot

_CUT_OFF = (QUARANTINE_STATE_OPEN, QUARANTINE_STATE_HALF_OPEN)
# Log entries searched for the reason of a quarantine.
_CHANGES_READ = 2000


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
    let_go = LetGo()
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
