"""Pushes to every EngineCore what it is to have, and takes its answers.

One task a stream, so that a hung engine holds nobody else. Every push is the
full state. The first one goes out as soon as the engine has subscribed.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import grpc
import structlog
from penstock.agent.errors import ContractError, FullError, PenstockError
from penstock.agent.model import EngineKey
from penstock.agent.policy.merge import Step, effective
from penstock.agent.policy.notice import Notice
from penstock.agent.policy.subscriber import Subscriber, Wanted
from penstock.agent.policy.wire import drill_message, quarantine_message, schedule_of
from penstock.agent.selector import Target
from penstock.agent.status import code_of
from penstock.proto.v1 import policy_pb2_grpc
from penstock.proto.v1.policy_pb2 import Push, Report, Subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from penstock.agent.policy.order_book import OrderBook
    from penstock.agent.policy.orders import FaultDrill, QuarantineOrder
    from penstock.agent.policy.pauses import Pauses
    from penstock.agent.policy.store import Clock, Store

    Context = grpc.aio.ServicerContext[Report, Push]

MAX_ENGINES = 256
MAX_LABELS = 128
MAX_TEXT = 1024
# How long a subscriber may take to say who it is.
_HELLO_DEADLINE = 10.0
# A wall clock that is set back must not make an expiry late by more than this.
_LONGEST_SLEEP = 30.0

_log = structlog.get_logger(__name__)


class PolicyFeed(policy_pb2_grpc.PolicyFeedServicer):
    """The ``PolicyFeed`` service, and what it knows of every engine's policy."""

    def __init__(
        self,
        store: Store,
        pauses: Pauses,
        orders: OrderBook,
        *,
        clock: Clock = time.time,
        patience: float = 10.0,
    ) -> None:
        """Follow *store*, *pauses* and *orders*.

        Args:
            clock: seconds since the epoch; expiries run by it.
            patience: seconds that a push may go unanswered before a newer one overtakes it.

        """
        self._store = store
        self._pauses = pauses
        self._orders = orders
        self._clock = clock
        self._patience = patience
        self._subscribers: dict[EngineKey, Subscriber] = {}
        self._closing = False
        self.changed = Notice()
        self._end = tuple(part.subscribe(self._refresh) for part in (store, pauses, orders))

    def subscribers(self) -> list[Subscriber]:
        """Return what is known of every engine that ever subscribed, ordered by key."""
        return [subscriber for _, subscriber in sorted(self._subscribers.items())]

    def subscriber(self, key: EngineKey) -> Subscriber | None:
        """Return what is known of one engine."""
        return self._subscribers.get(key)

    def wanted(self, key: EngineKey) -> str | None:
        """Return the hash that *key* is to have now; empty for vLLM's own configuration. From any thread.

        None until it has subscribed in this life of the agent: what selects it is not known before.
        """
        subscriber = self._subscribers.get(key)
        return subscriber.wanted.hash_at(self._clock()) if subscriber is not None else None

    def close(self) -> None:
        """End all streams; the engines keep what they have and come back later."""
        self._closing = True
        for end in self._end:
            end()
        self._wake_all()

    async def Watch(self, request_iterator: AsyncIterator[Report], context: Context) -> AsyncIterator[Push]:  # noqa: N802
        """Serve one EngineCore until either side ends the stream."""
        try:
            subscriber = await self._enter(request_iterator)
        except PenstockError as error:
            await context.abort(code_of(error), str(error))
        reader = asyncio.ensure_future(self._read(subscriber, request_iterator))
        log = _log.bind(engine=str(subscriber.target.key))
        log.info("engine subscribed", hash_in_force=subscriber.hash_in_force)
        try:
            async for push in self._pushes(subscriber, reader):
                yield push
        finally:
            subscriber.connected = False
            self.changed.notify()
            log.info("engine left the policy feed")
            reader.cancel()
            await asyncio.wait([reader])
            broken = None if reader.cancelled() else reader.exception()
        if isinstance(broken, PenstockError):
            await context.abort(code_of(broken), str(broken))
        if self._subscribers.get(subscriber.target.key) is not subscriber:
            await context.abort(grpc.StatusCode.ABORTED, "a newer stream of the same engine took over")

    async def _enter(self, reports: AsyncIterator[Report]) -> Subscriber:
        try:
            first = await asyncio.wait_for(anext(reports), _HELLO_DEADLINE)
        except (TimeoutError, StopAsyncIteration):
            raise ContractError("no Subscribe came; send one first") from None
        if first.WhichOneof("message") != "subscribe":
            raise ContractError(f"the first report is {first.WhichOneof('message')}; send Subscribe first")
        target = _target(first.subscribe)
        if target.key not in self._subscribers and len(self._subscribers) >= MAX_ENGINES:
            self._forget_one()
        subscriber = Subscriber.from_subscribe(first.subscribe, target)
        replaced = self._subscribers.get(target.key)
        self._subscribers[target.key] = subscriber
        if replaced is not None:
            # Its stream, if it is still there, sees that it was replaced, and ends.
            replaced.wake.notify()
        return subscriber

    def _forget_one(self) -> None:
        gone = next((key for key, item in self._subscribers.items() if not item.connected), None)
        if gone is None:
            raise FullError(f"{MAX_ENGINES} engines have subscribed already; run another agent")
        del self._subscribers[gone]

    async def _pushes(self, subscriber: Subscriber, reader: asyncio.Future[None]) -> AsyncIterator[Push]:
        key = subscriber.target.key
        while not (self._closing or reader.done()) and self._subscribers.get(key) is subscriber:
            seen = subscriber.wake.version
            steps = self._want(subscriber)
            now = self._clock()
            if subscriber.due(now, self._patience):
                nonce = subscriber.pushed(now)
                self.changed.notify()
                yield self._push(subscriber, nonce, steps)
                continue
            await subscriber.wake.wait(seen, self._pause(subscriber, now))

    def _push(self, subscriber: Subscriber, nonce: int, steps: tuple[Step, ...]) -> Push:
        drills, quarantines = self._orders_for(subscriber)
        now = self._orders.now_unix_nano
        return Push(
            nonce=nonce,
            schedule=schedule_of(steps),
            paused=subscriber.wanted.paused,
            drills=[drill_message(drill, now) for drill in drills],
            quarantines=[quarantine_message(order, now) for order in quarantines],
        )

    def _orders_for(
        self, subscriber: Subscriber
    ) -> tuple[tuple[FaultDrill, ...], tuple[QuarantineOrder, ...]]:
        """Leave out what the engine would refuse: with it, it would refuse its policy."""
        target = subscriber.target
        return (
            self._orders.drills_for(target) if subscriber.faults_allowed else (),
            self._orders.quarantines_for(target) if subscriber.takes_quarantines else (),
        )

    def _pause(self, subscriber: Subscriber, now: float) -> float:
        """Return the seconds until something is due although nothing changes."""
        times = [*subscriber.wanted.begins[:1]]
        times += [order.ends_unix_nano / 1e9 for kind in self._orders_for(subscriber) for order in kind]
        since = subscriber.waiting_since()
        if since is not None and since + self._patience > now:
            times.append(since + self._patience)
        return min([_LONGEST_SLEEP, *(max(time - now, 0.001) for time in times)])

    async def _read(self, subscriber: Subscriber, reports: AsyncIterator[Report]) -> None:
        try:
            async for report in reports:
                self._take(subscriber, report)
        finally:
            subscriber.wake.notify()

    def _take(self, subscriber: Subscriber, report: Report) -> None:
        kind = report.WhichOneof("message")
        now = self._clock()
        key = str(subscriber.target.key)
        if kind == "ack":
            if not subscriber.acknowledged(report.ack, now):
                _log.debug("stale acknowledgement ignored", engine=key, nonce=report.ack.nonce)
                return
            _log.info("policy acknowledged", engine=key, hash=report.ack.hash, paused=report.ack.paused)
        elif kind == "nack":
            if not subscriber.refused(report.nack, now):
                _log.debug("stale refusal ignored", engine=key, nonce=report.nack.nonce)
                return
            _log.warning("policy refused", engine=key, field=report.nack.field, error=report.nack.error)
        elif kind == "moved":
            subscriber.hash_in_force = report.moved.hash
        else:
            raise ContractError(f"a report is {kind or 'empty'}; send ack, nack or moved after Subscribe")
        subscriber.wake.notify()
        self.changed.notify()

    def _refresh(self) -> None:
        for subscriber in self._subscribers.values():
            self._want(subscriber)
        self._wake_all()

    def _wake_all(self) -> None:
        for subscriber in self._subscribers.values():
            subscriber.wake.notify()
        self.changed.notify()

    def _want(self, subscriber: Subscriber) -> tuple[Step, ...]:
        now = datetime.fromtimestamp(self._clock(), UTC)
        manifests = [policy.manifest for policy in self._store.policies()]
        steps = effective(manifests, subscriber.target, now)
        drills, quarantines = self._orders_for(subscriber)
        subscriber.wanted = Wanted(
            hashes=tuple(step.merged.hash for step in steps),
            begins=tuple(step.begins.timestamp() for step in steps[1:]),
            paused=self._pauses.is_paused(subscriber.target.key),
            drills=tuple(drill.id for drill in drills),
            quarantines=tuple(order.id for order in quarantines),
        )
        return steps


def _target(subscribe: Subscribe) -> Target:
    key = EngineKey(subscribe.key.server, subscribe.key.engine)
    if not key.engine:
        raise ContractError("Subscribe.key.engine is empty; only an EngineCore subscribes")
    if len(subscribe.labels) > MAX_LABELS:
        raise ContractError(f"Subscribe.labels has {len(subscribe.labels)} entries; at most {MAX_LABELS}")
    texts: Iterable[str] = (*key, subscribe.model, *subscribe.labels, *subscribe.labels.values())
    if any(len(text) > MAX_TEXT for text in texts):
        raise ContractError(f"Subscribe has a text of more than {MAX_TEXT} characters; cut it")
    return Target(key, subscribe.model, dict(subscribe.labels))
