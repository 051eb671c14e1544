"""The parts of the agent that the admin service uses, and the newest diagnosis of all engines, which other answers quote."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from penstock.agent.admin.lookups.other_weights import WeightsMemory
from penstock.agent.errors import PenstockError
from penstock.agent.policy.distribution import PolicySources
from penstock.agent.policy.manifest import effective_schedule
from penstock.agent.server.page_tokens import PageTokens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from penstock.agent.admin.lookups.retirement import Retirement
    from penstock.agent.journal import Journal
    from penstock.agent.metrics import Aggregator
    from penstock.agent.model import EngineKey
    from penstock.agent.parsing import Target
    from penstock.agent.policy.distribution import PolicyFeed
    from penstock.agent.policy.manifest import ScheduleStep
    from penstock.agent.policy.orders import OrderStore, Pauses
    from penstock.agent.policy.rollouts import RolloutLeader
    from penstock.agent.policy.sources.follower import SourceFollower
    from penstock.agent.policy.store import Store
    from penstock.agent.sources import Registry
    from penstock.agent.stalls import Stall
    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.admin_pb2 import AgentStatus

_log = structlog.get_logger(__name__)

_PERIOD_SECONDS: Final = 15.0
# A judgement as young as this is not made anew.
_FRESH_SECONDS: Final = 1.0
# Times that a judgement takes, until the next: it has a fiftieth of a core at most.
_PAUSE: Final = 50.0


class Judge:
    """Makes judgements, as often as their cost allows. Of one event loop.

    Args:
        clock: seconds that only grow.

    Attributes:
        latest: the newest judgement; None before the first, and where none can be made.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.latest: admin.Diagnosis | None = None
        self._clock = clock
        self._next = 0.0
        self._turn = asyncio.Lock()

    async def judgement(self, diagnose: Callable[[], Awaitable[admin.Diagnosis]]) -> admin.Diagnosis | None:
        """Return a judgement of the last second, or the newest that its cost allows; None where the log cannot be read.

        Args:
            diagnose: makes a diagnosis of all engines; may raise ``PenstockError``.

        """
        async with self._turn:
            began = self._clock()
            if began >= self._next:
                try:
                    self.latest = await diagnose()
                except PenstockError:
                    # The call that asks for a diagnosis says why.
                    self.latest = None
                self._next = began + max(_FRESH_SECONDS, _PAUSE * (self._clock() - began))
            return self.latest

    async def keep_judging(
        self, diagnose: Callable[[], Awaitable[admin.Diagnosis]], period: float = _PERIOD_SECONDS
    ) -> None:
        """Judge every *period* seconds, for who only looks at ``latest``; until cancelled."""
        while True:
            try:
                await self.judgement(diagnose)
            except Exception:  # noqa: BLE001  (a rule that raises must not end the judging)
                self.latest = None
                _log.exception("the conditions cannot be judged; please report it")
            await asyncio.sleep(period)


# Concurrent log queries; more wait.
_MAX_QUERIES = 2


async def _no_backend() -> str:
    return ""


class StatusSource(Protocol):
    """Fills fields of ``GetStatus``."""

    def __call__(self, status: AgentStatus) -> None:
        """Fill the fields of this part; must not block."""


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The parts of a running agent.

    Attributes:
        aggregator: the metrics aggregator; read on the loop only.
        try_backend: connects to the trace backend; returns the error, empty for none.
        sources: follows the policy sources; None without any.
        rollouts: leads the roll-outs of the store's policies; None for no leader.
        pages: what a bundle has as files, by name: the metrics page and the configuration; called on a thread. One
            that cannot be written yet raises StateError.
        statuses: parts that fill their fields of ``GetStatus`` (addresses, trace export).
        is_awaited: whether the source of an epoch is away, and neither lost nor stopped yet.
        stalls: what should go on in each engine and does not; from any thread.
        ended_stalls: those that are over since some minutes, likewise.
        look_seconds: likewise between two looks of an engine's workers at their transfers.
        judge: keeps the judgement that answers quote.
        was_unwritable: why the journal of a bundle's agent could not be written; empty where it could.
        weights: remembers which engines have read from peers with other weights.
        clock: seconds since the epoch.
        page: makes tokens of the page, and knows where that is.
        stopping: set when the agent starts to stop, for threads.
        turns: limits concurrent log queries, which slow down ingest.

    """

    journal: Journal
    registry: Registry
    aggregator: Aggregator
    store: Store
    pauses: Pauses
    orders: OrderStore
    feed: PolicyFeed
    retirement: Retirement
    state_dir: Path
    sources: SourceFollower | None = None
    rollouts: RolloutLeader | None = None
    pages: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    statuses: tuple[StatusSource, ...] = ()
    try_backend: Callable[[], Awaitable[str]] = _no_backend
    is_awaited: Callable[[int], bool] = lambda _: False
    stalls: Callable[[], Mapping[EngineKey, Sequence[Stall]]] = dict
    ended_stalls: Callable[[], Mapping[EngineKey, Sequence[Stall]]] = dict
    look_seconds: Callable[[], Mapping[EngineKey, float]] = dict
    judge: Judge = field(default_factory=Judge)
    was_unwritable: str = ""
    weights: WeightsMemory = field(default_factory=WeightsMemory)
    clock: Callable[[], float] = time.time
    page: PageTokens = field(default_factory=PageTokens)
    stopping: threading.Event = field(default_factory=threading.Event)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_QUERIES))

    @property
    def now(self) -> datetime:
        """The current time."""
        return datetime.fromtimestamp(self.clock(), UTC)

    @property
    def blind(self) -> str:
        """Why what engines report now is not stored; empty while it is."""
        return self.journal.error or self.was_unwritable

    @property
    def policies(self) -> PolicySources:
        """The look-up of the policies behind a hash."""
        return PolicySources(self.store, self.feed)

    def schedule(self, target: Target) -> tuple[ScheduleStep, ...]:
        """Return the policy schedule of *target*, from now on."""
        manifests = (policy.manifest for policy in self.store.policies())
        return effective_schedule(manifests, target, self.now, self.store.end_of)
