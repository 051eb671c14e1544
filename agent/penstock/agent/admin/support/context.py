"""What the admin service is built from."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from penstock.agent.policy.manifest import effective_schedule

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from penstock.agent.admin.support.retirement import Retirement
    from penstock.agent.journal import Journal
    from penstock.agent.metrics import Aggregator
    from penstock.agent.parsing import Target
    from penstock.agent.policy.distribution import PolicyFeed
    from penstock.agent.policy.manifest import ScheduleStep
    from penstock.agent.policy.orders import OrderStore, Pauses
    from penstock.agent.policy.store import Store
    from penstock.agent.sources import Registry
    from penstock.proto.v1.admin_pb2 import AgentStatus


# At a time; the others wait their turn.
_QUESTIONS = 2


async def _no_backend() -> str:
    return ""


class StatusSource(Protocol):
    """A part of the agent that has something to say in ``GetStatus``."""

    def __call__(self, status: AgentStatus) -> None:
        """Fill in its own fields; must not block."""


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The parts of a running agent.

    Attributes:
        fold: the fold that the metrics are made of; read on the loop only.
        try_backend: connects to the trace backend; returns why that failed.
        statuses: parts that fill in their fields of ``GetStatus`` (addresses, trace export).
        clock: seconds since the epoch.
        stopping: set when the agent begins to stop, for what runs on a thread.
        turns: of questions that read the log: they take the interpreter from those who take in batches.

    """

    journal: Journal
    registry: Registry
    fold: Aggregator
    store: Store
    pauses: Pauses
    orders: OrderStore
    feed: PolicyFeed
    retirement: Retirement
    state_dir: Path
    statuses: tuple[StatusSource, ...] = ()
    try_backend: Callable[[], Awaitable[str]] = _no_backend
    clock: Callable[[], float] = time.time
    stopping: threading.Event = field(default_factory=threading.Event)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_QUESTIONS))

    @property
    def now(self) -> datetime:
        """The present."""
        return datetime.fromtimestamp(self.clock(), UTC)

    def schedule(self, target: Target) -> tuple[ScheduleStep, ...]:
        """Return what *target* is to have, now and later."""
        return effective_schedule((policy.manifest for policy in self.store.policies()), target, self.now)
