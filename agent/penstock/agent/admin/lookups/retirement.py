"""Engines that have gone are forgotten: after a time, or when ``agentctl forget`` says so.

That an engine or a peer is forgotten stands in the log, so a replay forgets it at the same place. Its events and traces
stay in the log; its counters, gauges and rows go, and begin again if it comes back.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog
from penstock.agent.aio import to_completion
from penstock.agent.errors import ImpossibleError, NotFoundError, PenstockError
from penstock.agent.model import EngineKey
from penstock.agent.policy.store import audit
from penstock.proto.v1.common_pb2 import Peer
from penstock.proto.v1.events_pb2 import (
    QUARANTINE_STATE_HALF_OPEN,
    QUARANTINE_STATE_OPEN,
    Event,
    Forgotten,
)
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.agent.journal import Journal
    from penstock.agent.metrics import Aggregator
    from penstock.agent.policy.distribution import PolicyFeed
    from penstock.agent.policy.store import PolicyDatabase
    from penstock.agent.sources import Registry
    from penstock.proto.v1.snapshot_pb2 import PeerStatus, Snapshot

_log = structlog.get_logger(__name__)

DEFAULT_SECONDS = 15 * 60.0
_SWEEP_SECONDS = 1.0
_CUT_OFF = (QUARANTINE_STATE_OPEN, QUARANTINE_STATE_HALF_OPEN)


def is_held(status: PeerStatus) -> bool:
    """Return whether a source is connected to a peer or quarantines it."""
    return status.connected or status.upstream_invalid or status.quarantine in _CUT_OFF


def peers_in_use(snapshot: Snapshot) -> set[str]:
    """Return the peers that a source uses or quarantines."""
    held = {status.peer.address for status in snapshot.peers if is_held(status)}
    return held | {item.peer.address for item in snapshot.in_flight if item.count}


class Retirement:
    """Forgets engines that were disconnected for too long. One loop.

    Args:
        after: seconds that an engine may be disconnected. Restarts with the agent, as engines reconnect with back-off.
        clock: monotonic seconds.

    """

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        aggregator: Aggregator,
        feed: PolicyFeed,
        database: PolicyDatabase,
        *,
        after: float = DEFAULT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.after = after
        self._journal = journal
        self._registry = registry
        self._aggregator = aggregator
        self._feed = feed
        self._database = database
        self._clock = clock
        self._gone: dict[EngineKey, float] = {}

    def seconds_left(self, key: EngineKey) -> float:
        """Return the seconds until a disconnected engine is retired."""
        now = self._clock()
        return max(0.0, self._gone.get(key, now) + self.after - now)

    def restore(self, key: EngineKey, seconds_left: float) -> None:
        """Note that a disconnected engine is retired in *seconds_left*."""
        self._gone[key] = self._clock() + seconds_left - self.after

    async def keep_retiring(self) -> None:
        """Retire engines, for ever."""
        while True:
            try:
                await self.sweep()
            except PenstockError as error:
                # Such as a full disk; retried.
                _log.debug("an engine could not be retired", error=str(error))
            except Exception:  # noqa: BLE001  (a bug must not end the loop)
                _log.exception("engines could not be retired; retrying")
            await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Retire the engines that are due.

        Raises:
            PenstockError: the log cannot be written; the next sweep retries.

        """
        now = self._clock()
        self._gone = {key: self._gone.get(key, now) for key in self._away()}
        for key, since in list(self._gone.items()):
            if now - since >= self.after and key in self._away():
                await self._forget(key)
                _log.info("engine retired", engine=str(key), away_seconds=round(now - since))

    async def forget_engine(self, key: EngineKey, *, author: str, reason: str) -> None:
        """Forget a disconnected engine.

        Raises:
            NotFoundError: no such engine.
            ImpossibleError: it is connected.
            PenstockError: the log could not be written; nothing changed.

        """
        if key not in self._away():
            if key not in self._connected():
                raise NotFoundError(f"there is no engine {str(key)!r}; 'agentctl get engines' lists them")
            raise ImpossibleError(f"engine {key} is connected; stop it first, or unset its PENSTOCK_ENDPOINT")
        await self._audit("forget-engine", f"engine {key}", author, reason)
        await self._forget(key, author)
        front_end, away = EngineKey(key.server, ""), self._away()
        rest = (other for other in away | self._connected() if other.server == key.server and other.engine)
        if front_end in away and not any(rest):
            await self._forget(front_end, author)

    async def forget_peer(
        self, peer: str, keys: Collection[EngineKey] | None, *, author: str, reason: str
    ) -> list[EngineKey]:
        """Forget a peer in *keys*, or everywhere with None; return the engines that had counted it.

        Raises:
            NotFoundError: no such engine knows it.
            ImpossibleError: an engine uses it.
            PenstockError: the log could not be written; some engines may have forgotten it.

        """
        using = [key for key in self._using(peer) if keys is None or key in keys]
        if using:
            raise ImpossibleError(
                f"engine {using[0]} reports {peer} as connected, in flight or quarantined, and would bring it back; a "
                f"connection ends when the engine or the peer restarts, a quarantine with 'agentctl quarantine lift {peer}'"
            )
        counting = [key for key in self._aggregator.counting_peer(peer) if keys is None or key in keys]
        if not counting:
            raise NotFoundError(
                f"no such engine knows peer {peer!r}; 'agentctl get peers --state all' lists peers"
            )
        await self._audit("forget-peer", f"peer {peer}", author, reason)
        for key in counting:
            await self._write(key, Forgotten(peer=Peer(address=peer), author=author))
        return counting

    def _connected(self) -> set[EngineKey]:
        """Return the engines with a connected source or policy stream."""
        return {live.source.key for live in self._registry.sources() if live.connected} | {
            subscriber.target.key for subscriber in self._feed.subscribers() if subscriber.connected
        }

    def _away(self) -> set[EngineKey]:
        """Return all other known engines, front ends included."""
        known = {live.source.key for live in self._registry.sources()}
        known |= {subscriber.target.key for subscriber in self._feed.subscribers()}
        return (known | set(self._aggregator.known())) - self._connected()

    def _using(self, peer: str) -> list[EngineKey]:
        return sorted(
            {
                live.source.key
                for live in self._registry.sources()
                if live.snapshot is not None and peer in peers_in_use(live.snapshot)
            }
        )

    async def _audit(self, action: str, name: str, author: str, reason: str) -> None:
        change = audit.Change(author=author, action=action, name=name, reason=reason)

        def write() -> None:
            with self._database.transaction() as connection:
                audit.append(connection, change, time.time_ns())

        await to_completion(asyncio.to_thread(write))

    async def _forget(self, key: EngineKey, author: str = "") -> None:
        await self._write(key, Forgotten(author=author))
        self._gone.pop(key, None)
        self._registry.forget(key)
        self._feed.forget(key)

    async def _write(self, key: EngineKey, forgotten: Forgotten) -> None:
        async with self._journal.own.next_batch(key) as (source, seq):
            event = Event(time_unix_nano=time.time_ns(), forgotten=forgotten)
            batch = Batch(epoch=source.epoch, seq=seq, events=[event])
            await self._journal.append(source, batch, batch.SerializeToString())
