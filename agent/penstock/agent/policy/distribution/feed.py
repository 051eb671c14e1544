"""Desired state, pushes and answers of all engines. No IO, no waiting; ``service.py`` has the streams.

Every push is the full state. The first one is due at once after Subscribe.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import structlog
from penstock.agent.aio import ChangeSignal
from penstock.agent.errors import ContractError, FullError
from penstock.agent.model import EngineKey, digest, policy_names
from penstock.agent.parsing import Target
from penstock.agent.policy.distribution.push_encoding import (
    EffectivePolicies,
    drill_message,
    quarantine_message,
)
from penstock.agent.policy.distribution.stack_questions import StackQuestions
from penstock.agent.policy.distribution.subscriber import DesiredState, Subscriber
from penstock.agent.sources import EngineOwners
from penstock.proto.v1.policy_pb2 import Push, Report, StackDump, StackRequest, Subscribe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.model import PolicySource
    from penstock.agent.policy.distribution.push_encoding import PolicySchedule
    from penstock.agent.policy.orders import FaultDrill, OrderStore, Pauses, QuarantineOrder
    from penstock.agent.policy.store import Clock, Store

MAX_ENGINES = 256
MAX_LABELS = 128
MAX_FIELDS = 128
MAX_TEXT = 1024
MAX_SECRET_BYTES = 64
# Until a step of the time of day is noticed at the latest.
_LONGEST_SLEEP = 30.0

_log = structlog.get_logger(__name__)


class _Desired(NamedTuple):
    """The desired state of an engine, and whether it is new."""

    is_new: bool
    schedule: PolicySchedule
    drills: tuple[FaultDrill, ...]
    quarantines: tuple[QuarantineOrder, ...]


class PolicyFeed:
    """The policy state of every engine. One loop, except :meth:`wanted`."""

    def __init__(
        self,
        store: Store,
        pauses: Pauses,
        orders: OrderStore,
        *,
        owners: EngineOwners | None = None,
        clock: Clock = time.time,
        patience: float = 10.0,
    ) -> None:
        """Subscribe to *store*, *pauses* and *orders*.

        Args:
            owners: the owning process of each engine; shared with the ingest.
            clock: seconds since the epoch; used for expiries.
            patience: seconds until an unanswered push is sent again, with the newest state.

        """
        self._schedules = EffectivePolicies(store)
        self._store = store
        self._pauses = pauses
        self._orders = orders
        self._owners = owners or EngineOwners()
        self._clock = clock
        self._patience = patience
        self._subscribers: dict[EngineKey, Subscriber] = {}
        self._stacks = StackQuestions()
        self.closing = False
        self.changed = ChangeSignal()
        self._end = tuple(part.subscribe(self._refresh) for part in (store, pauses, orders))

    def subscribers(self) -> list[Subscriber]:
        """Return all engines that ever subscribed, ordered by key."""
        return [subscriber for _, subscriber in sorted(self._subscribers.items())]

    def refusing(self) -> set[EngineKey]:
        """Return the engines whose last answer refused what they were sent."""
        return {
            key
            for key, subscriber in self._subscribers.items()
            if subscriber.answer is not None and subscriber.answer.error
        }

    def subscriber(self, key: EngineKey) -> Subscriber | None:
        """Return the subscriber of an engine; None if it never subscribed."""
        return self._subscribers.get(key)

    def wanted(self, key: EngineKey) -> str | None:
        """Return the desired hash of *key*; empty for vLLM's own configuration. Any thread.

        None until the engine has subscribed: its labels are unknown before.
        """
        subscriber = self._subscribers.get(key)
        return subscriber.wanted.hash_at(self._clock()) if subscriber is not None else None

    def policies(self, subscriber: Subscriber, hash_: str) -> tuple[PolicySource, ...]:
        """Return the policies behind a hash that is, or should be, in force in an engine now."""
        return self._store.sources(hash_, subscriber.target, int(self._clock() * 1e9))

    def policy_names(self, subscriber: Subscriber, hash_: str) -> str:
        """Return those policies for a log line; empty without a hash."""
        return policy_names(self.policies(subscriber, hash_), hash_)

    def close(self) -> None:
        """End all streams; the engines keep their policy and reconnect."""
        self.closing = True
        for end in self._end:
            end()
        self._wake_all()

    def add_stream(self, subscribe: Subscribe) -> Subscriber:
        """Add the stream of an engine; replaces its earlier one.

        Raises:
            ContractError: Subscribe exceeds a limit.
            HeldError: another connected process owns the engine.
            FullError: too many engines are connected.

        """
        target = _target(subscribe)
        if target.key not in self._subscribers and len(self._subscribers) >= MAX_ENGINES:
            self._forget_one()
        subscriber = Subscriber.from_subscribe(subscribe, target)
        subscriber.ownership = self._owners.enter(target.key, digest(subscribe.secret), subscriber.oust)
        replaced = self._subscribers.get(target.key)
        self._subscribers[target.key] = subscriber
        if replaced is not None:
            if not subscribe.secret and replaced.connected and replaced.epoch != subscriber.epoch:
                _log.warning(
                    "two engines subscribe under one name and replace each other, unless one is just ending; "
                    "set a different PENSTOCK_SERVER for each server of the pod",
                    engine=str(target.key),
                )
            # Its stream, if still open, sees the replacement and ends.
            replaced.wake.notify()
        return subscriber

    async def ask_stacks(self, subscriber: Subscriber, seconds: float) -> StackDump | None:
        """Ask an engine what its threads execute; None if it does not answer within *seconds*.

        Raises:
            FullError: another caller asks it.

        """
        with self._stacks.asked(subscriber.target.key) as (question, answer):
            subscriber.stacks_asked = question
            subscriber.wake.notify()
            try:
                async with asyncio.timeout(seconds):
                    return await answer
            except TimeoutError:
                return None

    def end_stream(self, subscriber: Subscriber) -> None:
        """Mark a stream as ended; the last state of the engine stays."""
        subscriber.connected = False
        if subscriber.ownership is not None:
            self._owners.leave(subscriber.ownership)
        self.changed.notify()

    def forget(self, key: EngineKey) -> None:
        """Drop the state of a disconnected engine."""
        subscriber = self._subscribers.get(key)
        if subscriber is not None and not subscriber.connected:
            del self._subscribers[key]
            self._schedules.forget(key)
            self.changed.notify()

    def is_current(self, subscriber: Subscriber) -> bool:
        """Return whether the stream is the engine's newest, and its process still owns the engine."""
        return not subscriber.ousted and self._subscribers.get(subscriber.target.key) is subscriber

    def next_push(self, subscriber: Subscriber) -> bytes | None:
        """Return the serialized push that is due, and record it as sent; None if none is due."""
        now = self._clock()
        desired = self._recompute(subscriber, now)
        if not subscriber.due(now, self._patience):
            return None
        push = Push(nonce=subscriber.record_push(now), paused=subscriber.wanted.paused)
        moment = self._orders.now_unix_nano
        if subscriber.stacks_asked:
            push.stacks.CopyFrom(StackRequest(id=subscriber.stacks_asked))
            subscriber.stacks_asked = 0
        push.drills.extend(drill_message(drill, moment) for drill in desired.drills)
        push.quarantines.extend(quarantine_message(order, moment) for order in desired.quarantines)
        self.changed.notify()
        # Many engines share the schedule, which is serialized once.
        return push.SerializeToString() + desired.schedule.encoded(
            datetime.fromtimestamp(now, UTC), named=subscriber.takes_policy_names
        )

    def seconds_until_due(self, subscriber: Subscriber) -> float:
        """Return the seconds until the next push is due without a change."""
        now = self._clock()
        times = [*subscriber.wanted.begins[:1]]
        times += [order.ends_unix_nano / 1e9 for kind in self._orders_for(subscriber) for order in kind]
        again = subscriber.due_at(now, self._patience)
        if again is not None:
            times.append(again)
        return min([_LONGEST_SLEEP, *(max(time - now, 0.001) for time in times)])

    def on_report(self, subscriber: Subscriber, report: Report) -> None:
        """Apply a report of an engine after its Subscribe.

        Raises:
            ContractError: the report is of a wrong kind.

        """
        kind = report.WhichOneof("message")
        now = self._clock()
        if kind == "ack":
            if not subscriber.on_ack(report.ack, now):
                _log.debug(
                    "stale acknowledgement ignored", engine=str(subscriber.target.key), nonce=report.ack.nonce
                )
                return
            self._log_refusals(subscriber)
        elif kind == "nack":
            if not subscriber.on_nack(report.nack, now):
                _log.debug(
                    "stale refusal ignored", engine=str(subscriber.target.key), nonce=report.nack.nonce
                )
                return
            self._log_refusals(subscriber)
        elif kind == "moved":
            subscriber.on_moved(report.moved, now)
        elif kind == "stacks":
            self._stacks.answer(subscriber.target.key, report.stacks)
            return
        else:
            raise ContractError(
                f"a report is {kind or 'empty'}; send ack, nack, moved or stacks after Subscribe"
            )
        if subscriber.due(now, self._patience) or subscriber.due_at(now, self._patience) is not None:
            # Otherwise nothing is due: do not wake the stream for every answer.
            subscriber.wake.notify()
        self.changed.notify()

    def _forget_one(self) -> None:
        gone = next((key for key, item in self._subscribers.items() if not item.connected), None)
        if gone is None:
            raise FullError(f"{MAX_ENGINES} engines are subscribed, the limit; run another agent")
        self.forget(gone)

    def _orders_for(
        self, subscriber: Subscriber
    ) -> tuple[tuple[FaultDrill, ...], tuple[QuarantineOrder, ...]]:
        """Return the orders of an engine, without those that it would refuse."""
        target = subscriber.target
        return (
            self._orders.drills_for(target) if subscriber.faults_allowed else (),
            self._orders.quarantines_for(target) if subscriber.takes_quarantines else (),
        )

    def _refresh(self) -> None:
        now = self._clock()
        for subscriber in self._subscribers.values():
            # Otherwise neither the push nor its time has changed.
            if self._recompute(subscriber, now).is_new:
                subscriber.wake.notify()
        self.changed.notify()

    def _wake_all(self) -> None:
        for subscriber in self._subscribers.values():
            subscriber.wake.notify()
        self.changed.notify()

    def _recompute(self, subscriber: Subscriber, now: float) -> _Desired:
        moment = datetime.fromtimestamp(now, UTC)
        schedule = self._schedules.of(subscriber.target, moment)
        drills, quarantines = self._orders_for(subscriber)
        wanted = DesiredState(
            hashes=schedule.hashes,
            begins=schedule.begins,
            paused=self._pauses.is_paused(subscriber.target.key),
            drills=tuple(drill.id for drill in drills),
            quarantines=tuple(order.id for order in quarantines),
            sources=schedule.sources if subscriber.takes_policy_names else (),
        )
        return _Desired(subscriber.set_desired(wanted, now), schedule, drills, quarantines)

    def _log_refusals(self, subscriber: Subscriber) -> None:
        answer, key = subscriber.answer, str(subscriber.target.key)
        if answer is None:
            return
        if answer.error:
            name = self.policy_names(subscriber, answer.wanted.hash)
            _log.warning("policy refused", engine=key, policy=name, field=answer.field, error=answer.error)
        for order, error in answer.refused_orders.items():
            _log.warning("order refused", engine=key, order=order, error=error)


def _target(subscribe: Subscribe) -> Target:
    key = EngineKey(subscribe.key.server, subscribe.key.engine)
    if not key.engine:
        raise ContractError("Subscribe.key.engine is empty; only an EngineCore subscribes")
    if len(subscribe.labels) > MAX_LABELS:
        raise ContractError(f"Subscribe.labels has {len(subscribe.labels)} entries; at most {MAX_LABELS}")
    if len(subscribe.supported_fields) > MAX_FIELDS:
        raise ContractError(
            f"Subscribe.supported_fields has {len(subscribe.supported_fields)} entries; at most {MAX_FIELDS}"
        )
    texts: Iterable[str] = (
        *key,
        subscribe.model,
        *subscribe.labels,
        *subscribe.labels.values(),
        *subscribe.supported_fields,
    )
    if len(subscribe.secret) > MAX_SECRET_BYTES:
        raise ContractError(f"Subscribe.secret has {len(subscribe.secret)} bytes; at most {MAX_SECRET_BYTES}")
    if any(len(text) > MAX_TEXT for text in texts):
        raise ContractError(f"Subscribe has a text of more than {MAX_TEXT} characters; cut it")
    return Target(key, subscribe.model, dict(subscribe.labels))
