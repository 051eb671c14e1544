"""What one engine contributes to its pairs: facts, workers, peers and how fast each is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin.lookups.known_peers import clock_offsets
from penstock.agent.admin.lookups.messages import key_message, role_of
from penstock.agent.metrics import SIZE_CLASSES
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.snapshot_pb2 import PeerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.agent.metrics import PairKey, Speed
    from penstock.agent.model import EngineKey
    from penstock.agent.sources import EngineView
    from penstock.proto.v1.snapshot_pb2 import EngineFacts


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
            statuses.setdefault(status.peer.address, PeerStatus()).MergeFrom(status)
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
    )
