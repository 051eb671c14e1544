"""Applies policy pushes between two scheduler steps. One thread; no IO.

The parts of a push are independent. A refused policy blocks neither the kill switch nor the orders, and a refused order
blocks nothing else; after a refused policy the last good one stays in force. What is accepted takes effect as a whole at
the end of a step, and only then the push is answered. Importing this module is cheap: protobuf comes with the first push.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import COMPONENT_SCHEDULER, guard, logger
from penstock.instrumentation.orders import NO_ORDERS
from penstock.instrumentation.policy.active_policy import PolicySchedule
from penstock.rules import NO_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.instrumentation.core import Session
    from penstock.instrumentation.orders import Orders
    from penstock.instrumentation.policy.active_policy import ActivePolicy
    from penstock.proto.v1.policy_pb2 import Push, Report
    from penstock.rules import Policy

ATTEMPT: Final = 1.0
"""Seconds that a swap waits for a step to end before the thread reads its inbox again."""

STEP_DEADLINE: Final = 30.0
"""Seconds after which a push that waits for a step is refused; it takes effect later all the same."""

_NEVER: Final = float("inf")
_NAME: Final = "penstock-policy"


@dataclass(slots=True)
class PendingPush:
    """A push whose final answer is outstanding.

    Attributes:
        nonce: 0 if its stream has ended, so that no answer is awaited.
        hash: of the policy that it asks for.
        received_ns: wall clock.
        deadline: by the applier's clock.
        field: path of what was refused of its policy.
        error: why it was refused; empty if it was not.
        refused: why an order was refused, by its id.
        order_ids: of all its orders.
        timed_out: it has been refused because no step ended.

    """

    nonce: int
    hash: str
    received_ns: int
    deadline: float
    field: str
    error: str
    refused: Mapping[str, str]
    order_ids: tuple[str, ...]
    timed_out: bool = False

    def answer(self, hash_in_force: str, *, paused: bool) -> Report:
        """Return the ACK of what is in force now, or the NACK of a refused policy."""
        if self.error:
            return self._nack(self.error, self.refused, hash_in_force)
        answer = {"nonce": self.nonce, "hash": hash_in_force, "paused": paused}
        return _report(ack={**answer, "refused_orders": _refusals(self.refused)})

    def refuse_all(self, error: str, hash_in_force: str) -> Report:
        """Return the NACK of the policy and of every order."""
        return self._nack(error, dict.fromkeys(self.order_ids, error), hash_in_force)

    def _nack(self, error: str, refused: Mapping[str, str], hash_in_force: str) -> Report:
        answer = {"nonce": self.nonce, "field": self.field, "error": error, "hash_in_force": hash_in_force}
        return _report(nack={**answer, "refused_orders": _refusals(refused)})


def report_move(hash_: str) -> Report:
    """Return the report that the schedule has moved on to the policy with *hash_*."""
    return _report(moved={"hash": hash_})


def _refusals(refused: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"id": name, "error": error} for name, error in refused.items()]


def _report(**message: Any) -> Report:
    from penstock.proto.v1.policy_pb2 import Report  # noqa: PLC0415  (protobuf)

    return Report(**message)


@dataclass(frozen=True, slots=True)
class _Target:
    """The state to reach: the last push, and the last good of what was refused in it."""

    schedule: PolicySchedule
    orders: Orders = NO_ORDERS
    paused: bool = False


class PolicyApplier:
    """Applies pushes, runs their schedules down, and is the only writer of the active policy.

    One thread calls :meth:`apply`, :meth:`tick` and :meth:`forget_stream`; properties may be read from any.

    Attributes:
        last_error: why the last push was refused; empty if it was not.
        changed_ns: wall clock of the last change of the policy in force.

    """

    def __init__(
        self,
        session: Session,
        active_policy: ActivePolicy,
        emit_event: Callable[..., None],
        fields: Iterable[str],
        *,
        faults_allowed: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with vLLM's own configuration.

        Args:
            session: whose kill switch it sets.
            active_policy: what it swaps.
            emit_event: emits ``policy_applied``, as :meth:`Emitter.emit_event` does.
            fields: what this engine acts upon, as dotted names of ``PolicyBody``.
            faults_allowed: whether drills are accepted.
            clock: monotonic seconds, by which schedules run down.

        """
        self.last_error = ""
        self.changed_ns = 0
        self._session = session
        self._active = active_policy
        self._emit_event = emit_event
        self._fields = frozenset(fields)
        self._faults_allowed = faults_allowed
        self._clock = clock
        self._target = _Target(PolicySchedule((), clock()))
        self._accepted: Policy = NO_POLICY
        self._paused = False
        self._pending: PendingPush | None = None
        # When a step that keeps the schedule from moving on counts as one that hangs.
        self._overdue: float | None = None
        self._reported: frozenset[tuple[str, str, str]] = frozenset()

    @property
    def hash(self) -> str:
        """The hash in force, or held back by the kill switch; empty for vLLM's own configuration."""
        return self._accepted.hash

    @property
    def in_force(self) -> Policy:
        """The policy in force; ``NO_POLICY`` for vLLM's own configuration."""
        return self._active.current

    @property
    def paused(self) -> bool:
        """Whether the kill switch is in force."""
        return self._paused

    @property
    def sections(self) -> list[str]:
        """Top-level fields of ``PolicyBody`` that this engine acts upon, sorted."""
        return sorted({name.partition(".")[0] for name in self._fields})

    def expires_in(self) -> float | None:
        """Return the seconds until the schedule moves on; None if it does not. From any thread."""
        now = self._clock()
        ends = self._target.schedule.at(now).ends
        return None if ends is None else ends - now

    def due_in(self) -> float:
        """Return the seconds until :meth:`tick` has something to do; 0 while it waits for a step."""
        step = self._target.schedule.at(self._clock())
        if self._pending is not None or step.policy is not self._accepted:
            return 0.0
        return _NEVER if step.ends is None else max(0.0, step.ends - self._clock())

    def forget_stream(self) -> None:
        """Drop the outstanding answer, because its stream has ended; the push still takes effect."""
        if self._pending is not None:
            self._pending.nonce, self._pending.timed_out = 0, True

    def apply(self, push: Push) -> Report | None:
        """Apply a push and return its answer; None if the running step has not ended yet, see :meth:`tick`."""
        from penstock.instrumentation.policy.decode_push import decode_schedule  # noqa: PLC0415  (protobuf)
        from penstock.rules.decode import RefusedError  # noqa: PLC0415  (protobuf)

        received_ns, now = time.time_ns(), self._clock()
        if push.paused:
            # Whatever else is in it, and whether or not a step ends: the kill switch is never refused.
            self._session.set_paused("policy", paused=True)
        schedule, field, error = self._target.schedule, "", ""
        try:
            schedule = PolicySchedule(decode_schedule(push, self._fields), now)
        except RefusedError as refused:
            field, error = refused.field, str(refused)
        except Exception as bug:  # noqa: BLE001  (an error of our own is answered too, not looped over)
            guard.record(_NAME, bug)
            error = f"this engine failed to read the policy: {bug!r:.200}"
        orders, refused_orders = self._decode_orders(push)
        self._target, self._overdue = _Target(schedule, orders, push.paused), None
        self._pending = PendingPush(
            push.nonce,
            push.schedule[0].hash if push.schedule else "",
            received_ns,
            now + STEP_DEADLINE,
            field,
            error,
            refused_orders,
            tuple(order.id for kind in (push.quarantines, push.drills) for order in kind),
        )
        return self._answer(self._pending)

    def tick(self) -> Report | None:
        """Answer the push that waits for a step, or move on in the schedule; return the report to send, if any."""
        if self._pending is not None:
            return self._answer(self._pending)
        due = self._target.schedule.at(self._clock()).policy
        if due is self._accepted:
            return None
        if not self._put_in_force("expiry", 0):
            # A step may well take longer than one attempt.
            self._overdue = self._overdue or self._clock() + STEP_DEADLINE
            if self._clock() >= self._overdue:
                self.last_error = _step_hangs()
            return None
        self._overdue = None
        if self.last_error == _step_hangs():
            self.last_error = ""
        return report_move(due.hash)

    def _decode_orders(self, push: Push) -> tuple[Orders, Mapping[str, str]]:
        from penstock.instrumentation.policy.decode_push import decode_orders  # noqa: PLC0415  (protobuf)

        try:
            return decode_orders(
                push,
                faults_allowed=self._faults_allowed,
                now_ns=time.monotonic_ns(),
                unfit=self._active.unfit_drill,
            )
        except Exception as bug:  # noqa: BLE001  (as above)
            guard.record(_NAME, bug)
            error = f"this engine failed to read the orders: {bug!r:.200}"
            return self._target.orders, {
                order.id: error for kind in (push.quarantines, push.drills) for order in kind
            }

    def _answer(self, push: PendingPush) -> Report | None:
        if self._put_in_force("push", push.received_ns):
            self._pending = None
            self._report_refusals(push)
            if not push.nonce:
                return None
            if not self._paused:
                # The same agent says it on the ingest stream, but late if that stream is broken.
                self._session.set_paused("ingest", paused=False)
            return push.answer(self.hash, paused=self._paused)
        if push.timed_out or self._clock() < push.deadline:
            return None
        push.timed_out = True
        error = self.last_error = _step_hangs()
        self._emit_applied(push.hash, self._active.current.hash, "push", push.received_ns, error)
        return push.refuse_all(error, self.hash)

    def _put_in_force(self, cause: str, received_ns: int) -> bool:
        """Put the target's present state in force, or nothing while paused; return False if no step ended in time."""
        target = self._target
        accepted = target.schedule.at(self._clock()).policy
        previous = self._active.current
        policy, orders = (NO_POLICY, NO_ORDERS) if target.paused else (accepted, target.orders)
        if not self._swap(policy, orders):
            return False
        if target.paused != self._paused:
            cause = "pause" if target.paused else "resume"
        self._accepted, self._paused = accepted, target.paused
        self._session.set_paused("policy", paused=target.paused)
        current = self._active.current
        if current != previous or cause in ("pause", "resume"):
            self._emit_applied(current.hash, previous.hash, cause, received_ns)
        return True

    def _swap(self, policy: Policy, orders: Orders) -> bool:
        changed = policy != self._active.current
        if not changed and orders == self._active.orders:
            return True
        if not self._active.swap(policy, min(ATTEMPT, STEP_DEADLINE), orders):
            return False
        if changed:
            self.changed_ns = time.time_ns()
        return True

    def _report_refusals(self, push: PendingPush) -> None:
        """Log and emit what was refused of a push, unless the one before was refused for the same reason."""
        self.last_error = push.error
        refused = {(push.hash, push.error, "push"): push.error} if push.error else {}
        refused |= {(name, error, "order"): f"order {name}: {error}" for name, error in push.refused.items()}
        for key, error in refused.items():
            if key not in self._reported:
                logger.warning("penstock refused what the agent pushed: %s", error)
                name, _, cause = key
                current = self._active.current.hash
                self._emit_applied(name if cause == "push" else "", current, cause, push.received_ns, error)
        self._reported = frozenset(refused)

    def _emit_applied(self, hash_: str, previous: str, cause: str, received_ns: int, error: str = "") -> None:
        fields = {
            "hash": hash_,
            "previous_hash": previous,
            "accepted": not error,
            "error": error,
            "cause": cause,
            "received_time_unix_nano": received_ns,
        }
        self._emit_event("policy_applied", fields, component=COMPONENT_SCHEDULER)


def _step_hangs() -> str:
    return f"no step of the engine ended within {STEP_DEADLINE:g} s; it hangs"
