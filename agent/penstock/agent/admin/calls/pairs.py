"""The call about pairs of engines: what each engine contributes, and which of them have loaded different weights."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.agent.admin.lookups import DifferentWeights, clock_offsets, key_message, role_of
from penstock.agent.metrics import SIZE_CLASSES
from penstock.agent.model import EngineKey
from penstock.agent.pairs import add_status, list_pairs
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.snapshot_pb2 import PeerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.agent.admin.lookups import AgentContext, OtherWeights, Place
    from penstock.agent.metrics import PairKey, Speed
    from penstock.agent.sources import EngineView
    from penstock.proto.v1.snapshot_pb2 import EngineFacts


async def list_pairs_of(agent: AgentContext, _: admin.ListPairsRequest) -> admin.ListPairsResponse:
    """Return the pairs of all engines here, among themselves and with the peers that they know."""
    views, now = agent.registry.engines(), int(agent.clock() * 1e9)
    looks = agent.look_seconds()

    def speeds(key: EngineKey, moment: int) -> Mapping[PairKey, Speed]:
        return agent.aggregator.pair_speeds(key, moment, looks.get(key, 0.0))

    def compared() -> admin.ListPairsResponse:
        return list_pairs(pair_engines(views, speeds, now))

    # Sums of many windows, and many engines against each other, take longer than the loop may stand still.
    return await asyncio.to_thread(compared)


async def other_weights_of(agent: AgentContext) -> OtherWeights:
    """Return the pairs of engines here that are known to have loaded different weights, now or since the agent began."""
    views = {view.key: view for view in agent.registry.engines()}
    ahead = clock_offsets(views.values())

    def began(key: EngineKey) -> int:
        """Return when the process of an engine began, by the agent's clock; 0 for not known."""
        return views[key].start_time_unix_nano - ahead.get(key, 0) if key in views else 0

    found: dict[Place, DifferentWeights] = {}
    for pair in (await list_pairs_of(agent, admin.ListPairsRequest())).pairs:
        if pair.weights != admin.PAIR_WEIGHTS_DIFFER or not (pair.peer.address and pair.HasField("peer_key")):
            continue
        key, peer = (EngineKey(each.server, each.engine) for each in (pair.key, pair.peer_key))
        values = next((each for each in pair.differences if each.fact == "weights"), admin.FactDifference())
        which = f" ({values.value} here, {values.peer_value} there)" if values.value else ""
        found[key, pair.peer.address] = DifferentWeights(
            since=max(began(key), began(peer)) + ahead.get(key, 0),
            peer_key=peer,
            evidence=f"it read KV blocks of engine {peer}, which had loaded other weights{which}",
            processes=tuple(views[each].start_time_unix_nano for each in (key, peer) if each in views),
        )

    def end(place: Place, each: DifferentWeights) -> int:
        # Until another process took the peer's place, which is seen a little later.
        key, now = place[0], int(agent.clock() * 1e9)
        next_began = began(each.peer_key) + ahead.get(key, 0)
        return next_began if each.since < next_began < now else now + ahead.get(key, 0)

    return agent.weights.update(found, end)


def pair_engines(
    views: Iterable[EngineView], speeds_of: Callable[[EngineKey, int], Mapping[PairKey, Speed]], now: int
) -> list[admin.PairEngine]:
    """Return the connected engines with what is compared of them.

    Args:
        views: all engines.
        speeds_of: what an engine moved before a time by its clock, nanoseconds.
        now: by the agent's clock, nanoseconds.

    """
    connected = [view for view in views if view.connected]
    ahead = clock_offsets(connected)
    return [
        _pair_engine(view, view.facts, speeds_of(view.key, now + ahead.get(view.key, 0)))
        for view in connected
        if view.facts is not None
    ]


def _pair_engine(view: EngineView, facts: EngineFacts, speeds: Mapping[PairKey, Speed]) -> admin.PairEngine:
    snapshots = [live.snapshot for live in view.sources if live.snapshot is not None]
    statuses: dict[str, PeerStatus] = {}
    for snapshot in snapshots:
        for status in snapshot.peers:
            # The worker reports the handshake, the scheduler the quarantine.
            add_status(statuses.setdefault(status.peer.address, PeerStatus()), status)
    engine = admin.PairEngine(
        key=key_message(view.key),
        # The facts learn it from the requests where vLLM's own setting leaves it open.
        role=facts.role or role_of(view.role),
        facts=facts,
        labels=dict(view.labels),
        transfers=[snapshot.transfer for snapshot in snapshots if snapshot.HasField("transfer")],
    )
    moved: dict[str, list[admin.PairSpeed]] = {}
    for pair, speed in speeds.items():
        moved.setdefault(pair.peer, []).append(_speed(pair, speed))
    for address in sorted(statuses.keys() | moved.keys()):
        status = statuses.get(address) or PeerStatus(peer={"address": address})
        if address in moved or status.connected or status.handshake_error:
            ordered = sorted(moved.get(address, ()), key=_slowest_first)
            engine.peers.add(status=status, speeds=ordered)
    return engine


def _slowest_first(speed: admin.PairSpeed) -> tuple[float, float]:
    return (speed.usual_ratio if speed.HasField("usual_ratio") else 1.0, speed.bytes_per_second)


def _speed(pair: PairKey, speed: Speed) -> admin.PairSpeed:
    return admin.PairSpeed(
        channel=pair.channel,  # type: ignore[arg-type]
        rank=pair.rank,
        bytes_per_second=speed.now,
        count=speed.count,
        usual_bytes_per_second=speed.usual,
        usual_count=speed.usual_count,
        usual_ratio=speed.ratio,
        siblings_ratio=speed.siblings_ratio,
        size_class=SIZE_CLASSES[speed.size_class],
        bytes_per_second_at_most=speed.most,
    )
