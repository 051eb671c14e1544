"""Rows of ``top``: rates over the last seconds, totals, sort order. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.agent.badness import badness, list_place
from penstock.agent.views import text
from penstock.agent.views.engines import action_words, cores, is_stopped, role_words
from penstock.agent.views.peers import condition_word, failed_attempts, peer_words, quantiles
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.proto.v1 import admin_pb2 as admin

SORTS = ("now", "failures", "rate", "waiting", "name")
# Seconds of a rate's window: long enough that rows keep their order.
WINDOW = 10.0


@dataclass(frozen=True, slots=True)
class AgentState:
    """The agent's state at one moment.

    Attributes:
        at: monotonic, for rates.
        now: seconds since the epoch, for ages.
        peers: the worst first; of many the worst only.
        error: why there is no state; empty if there is one.
        total_peers: rows of the whole list; 0 from an agent that sends it whole.

    """

    at: float
    now: float
    status: admin.AgentStatus | None = None
    engines: tuple[admin.Engine, ...] = ()
    peers: tuple[admin.PeerSummary, ...] = ()
    error: str = ""
    total_peers: int = 0


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine. Rates are per second; None before there are two samples."""

    name: str
    role: str
    connected: bool
    stopped: bool
    paused: bool
    cores: int
    in_sync: bool
    action: str
    transfers: float | None
    bytes: float | None
    failures: float | None
    in_flight: int
    # In its scheduler; None where that is not known.
    running: int | None
    waiting: int | None
    deferred: int
    oldest_unix_nano: int
    failed: int
    # How bad the worst of its peers is.
    badness: int


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One peer as one engine sees it."""

    engine: str
    address: str
    # With that of the engine there, if it is known.
    name: str
    state: str
    trouble: bool
    transfers: float | None
    failures: float | None
    failed: int
    # What is wrong now; its place in the agent's order.
    condition: int
    now: str
    place: int
    wait_minute: str
    wait_hour: str
    transfer_minute: str
    in_flight: int
    oldest_unix_nano: int
    last_failure_unix_nano: int
    cause: str


@dataclass(slots=True)
class History:
    """The samples of the last seconds."""

    samples: deque[AgentState] = field(default_factory=deque)
    error: str = ""
    error_since: float = 0.0
    # By sort order; a screen is drawn more often than samples come.
    _engines: dict[str, list[EngineRow]] = field(default_factory=dict)
    _peers: dict[str, list[PeerRow]] = field(default_factory=dict)

    def add(self, sample: AgentState) -> None:
        """Add a sample; one without state only sets the error."""
        if sample.error:
            self.error_since = self.error_since if self.error else sample.now
            self.error = sample.error
            return
        self.error = ""
        self._engines, self._peers = {}, {}
        self.samples.append(sample)
        while len(self.samples) > 2 and self.samples[1].at <= sample.at - WINDOW:  # noqa: PLR2004
            self.samples.popleft()

    @property
    def last(self) -> AgentState | None:
        """The newest sample with state."""
        return self.samples[-1] if self.samples else None

    def engines(self, sort: str) -> list[EngineRow]:
        """Return the engines of the newest sample, in that order."""
        if self.last is None:
            return []
        if sort in self._engines:
            return self._engines[sort]
        before = {_key(item.key): item.counters for item in self.samples[0].engines}
        worst: dict[tuple[str, str], int] = {}
        for peer in self.last.peers:
            worst[_key(peer.key)] = max(worst.get(_key(peer.key), 0), badness(peer.condition))
        found = [
            self._engine(item, before.get(_key(item.key)), worst.get(_key(item.key), 0))
            for item in self.last.engines
        ]
        order = self._engines[sort] = sorted(found, key=lambda row: (*_engine_order(row, sort), row.name))
        return order

    def peers(self, sort: str) -> list[PeerRow]:
        """Return the peers of the newest sample, in that order."""
        if self.last is None:
            return []
        if sort in self._peers:
            return self._peers[sort]
        before = {(_key(item.key), item.peer.address): item for item in self.samples[0].peers}
        found = [
            self._peer(item, before.get((_key(item.key), item.peer.address)), place)
            for place, item in enumerate(self.last.peers)
        ]
        order = self._peers[sort] = sorted(
            found, key=lambda row: (*_peer_order(row, sort), row.address, row.engine)
        )
        return order

    def _rate(self, after: int, before: int | None) -> float | None:
        seconds = self.samples[-1].at - self.samples[0].at
        # A smaller count: the agent's state was replaced.
        if before is None or seconds <= 0 or after < before:
            return None
        return (after - before) / seconds

    def _engine(self, item: admin.Engine, before: admin.EngineCounters | None, worst: int) -> EngineRow:
        now = item.counters
        return EngineRow(
            name=text.engine(item.key),
            role=role_words(item),
            connected=item.connected,
            stopped=is_stopped(item),
            paused=item.paused,
            cores=len(cores(item)),
            in_sync=item.in_sync,
            action=action_words(item),
            transfers=self._rate(_transfers(now), None if before is None else _transfers(before)),
            bytes=self._rate(now.bytes, None if before is None else before.bytes),
            failures=self._rate(now.failures, None if before is None else before.failures),
            in_flight=sum(entry.count for entry in item.in_flight),
            running=item.queue.running if item.HasField("queue") else None,
            waiting=sum(row.count for row in item.queue.waiting) if item.HasField("queue") else None,
            deferred=sum(entry.count for entry in item.deferred),
            oldest_unix_nano=_oldest(
                [entry.oldest_start_time_unix_nano for entry in item.deferred if entry.count]
                + [entry.oldest_start_time_unix_nano for entry in item.in_flight if entry.count]
            ),
            failed=now.failures,
            badness=worst,
        )

    def _peer(self, item: admin.PeerSummary, before: admin.PeerSummary | None, place: int) -> PeerRow:
        failed = failed_attempts(item)
        quarantined = item.status.quarantine > events.QUARANTINE_STATE_CLOSED
        worst = max(item.failures, key=lambda entry: entry.count, default=None)
        return PeerRow(
            engine=text.engine(item.key),
            address=item.peer.address,
            name=peer_words(item),
            state=_peer_state(item),
            trouble=quarantined or item.status.upstream_invalid,
            transfers=self._rate(
                item.transfers_ok + item.transfers_failed,
                None if before is None else before.transfers_ok + before.transfers_failed,
            ),
            failures=self._rate(failed, None if before is None else failed_attempts(before)),
            failed=failed,
            condition=item.condition,
            now=condition_word(item),
            place=place,
            wait_minute=quantiles(item.waits.last_minute),
            wait_hour=quantiles(item.waits.hour_before),
            transfer_minute=quantiles(item.transfers.last_minute),
            in_flight=item.in_flight,
            oldest_unix_nano=_oldest(
                [
                    item.oldest_in_flight.ToNanoseconds() if item.in_flight else 0,
                    item.oldest_deferred.ToNanoseconds() if item.deferred else 0,
                ]
            ),
            last_failure_unix_nano=item.last_failure.ToNanoseconds(),
            cause=""
            if worst is None
            else f"{text.word(common.FailureMode, worst.mode)}/{text.word(common.ErrorType, worst.error_type)}",
        )


def _key(key: common.EngineKey) -> tuple[str, str]:
    return key.server, key.engine


def _transfers(counters: admin.EngineCounters) -> int:
    return counters.transfers_ok + counters.transfers_failed


def _oldest(starts: Iterable[int]) -> int:
    return min((start for start in starts if start), default=0)


def _peer_state(item: admin.PeerSummary) -> str:
    if item.status.quarantine > events.QUARANTINE_STATE_CLOSED:
        return text.quarantine_state(item.status.quarantine)
    if item.status.upstream_invalid:
        return "invalid to vllm"
    if not item.HasField("status"):
        return text.NONE
    return "connected" if item.status.connected else "not connected"


def _engine_order(row: EngineRow, sort: str) -> tuple[float, ...]:
    if sort == "now":
        return (row.connected, -row.badness, -(row.failures or 0.0))
    if sort == "failures":
        return (row.connected, -(row.failures or 0.0), -row.failed)
    if sort == "rate":
        return (-(row.transfers or 0.0),)
    return (-row.deferred, -row.in_flight) if sort == "waiting" else ()


def _peer_order(row: PeerRow, sort: str) -> tuple[float, ...]:
    if sort == "now":
        # The agent orders peers of one condition.
        return (*list_place(row.condition, row.address), row.place)
    if sort == "failures":
        return (not row.trouble, -(row.failures or 0.0), -row.failed)
    if sort == "rate":
        return (-(row.transfers or 0.0),)
    return (-row.in_flight,) if sort == "waiting" else ()
