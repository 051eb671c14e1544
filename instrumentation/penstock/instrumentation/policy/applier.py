"""What one engine makes of the pushes of its policy feed: no thread, no stream, only the swap between two steps.

The parts of a push stand each for itself. A policy that is refused keeps neither the kill switch nor the orders out, and
an order that is refused nothing else; of a refused policy the last good one stays. What is left takes effect as a whole
at the end of a step, and only then the push is answered. Importing this module is cheap: protobuf comes with the first push.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import COMPONENT_SCHEDULER, guard
from penstock.instrumentation.policy.policy_schedule import PolicySchedule
from penstock.instrumentation.resilience import NO_ORDERS, NO_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from penstock.instrumentation.resilience import Orders, Policy
    from penstock.instrumentation.runtime import Runtime
    from penstock.proto.v1.policy_pb2 import Push, Report

ATTEMPT: Final = 1.0
"""Seconds that a swap waits for a step to end before the thread looks at its inbox again."""

STEP_DEADLINE: Final = 30.0
"""Seconds after which a push that no step has let in is refused; it takes effect later all the same."""

_NEVER: Final = float("inf")
_NAME: Final = "penstock-policy"

logger = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class _Target:
    """What is to be in force: what the last push said, and the last good of what was refused of it."""

    schedule: PolicySchedule
    directives: Orders = NO_ORDERS
    paused: bool = False


@dataclass(slots=True)
class _Taken:
    """A push that has not been answered for good.

    Attributes:
        nonce: 0 if its stream has ended, and with it who waited for the answer.
        hash: of the policy that it asks for.
        received_ns: wall clock.
        deadline: by the desk's clock.
        field: path of what was refused of its policy.
        error: why it was refused; empty if it was not.
        refused: by id, why an order does not hold.
        orders: ids of all its orders.
        told: it has been refused because no step ended.

    """

    nonce: int
    hash: str
    received_ns: int
    deadline: float
    field: str
    error: str
    refused: Mapping[str, str]
    orders: tuple[str, ...]
    told: bool = False


class PolicyApplier:
    """Takes pushes, lets their schedules run down, and is the only writer of the policy holder. For one thread.

    Attributes:
        last_error: why the last push was refused; empty if it was not.
        changed_ns: wall clock of the last change of the policy in force.

    """

    def __init__(
        self,
        runtime: Runtime,
        fields: Collection[str],
        *,
        faults_allowed: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with vLLM's own configuration.

        Args:
            runtime: whose policy it changes.
            fields: what this engine acts upon, as dotted names of ``PolicyBody``.
            faults_allowed: whether drills are taken.
            clock: monotonic seconds, by which schedules run down.

        """
        self.last_error = ""
        self.changed_ns = 0
        self._runtime = runtime
        self._fields = frozenset(fields)
        self._faults_allowed = faults_allowed
        self._clock = clock
        self._target = _Target(PolicySchedule((), clock()))
        self._accepted: Policy = NO_POLICY
        self._paused = False
        self._open: _Taken | None = None
        # When a step that keeps the schedule from moving on counts as one that hangs.
        self._overdue: float | None = None
        self._told: frozenset[tuple[str, str, str]] = frozenset()

    @property
    def hash(self) -> str:
        """The hash that is in force, or held back by the kill switch; empty for vLLM's own configuration."""
        return self._accepted.hash

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
        """Return the seconds until :meth:`tick` has something to do; 0 while a step is being waited for."""
        step = self._target.schedule.at(self._clock())
        if self._open is not None or step.policy is not self._accepted:
            return 0.0
        return _NEVER if step.ends is None else max(0.0, step.ends - self._clock())

    def forget_stream(self) -> None:
        """Owe no answer any more, because the stream of the last push has ended; what it said still takes effect."""
        if self._open is not None:
            self._open.nonce, self._open.told = 0, True

    def take(self, push: Push) -> Report | None:
        """Take a push in and return its answer; None if the step that runs has not ended yet, see :meth:`tick`."""
        from penstock.instrumentation.policy.decode import RefusedError, decode  # noqa: PLC0415  (protobuf)

        received_ns, now = time.time_ns(), self._clock()
        if push.paused:
            # Whatever else is in it, and whether or not a step ends: the kill switch is never refused.
            self._runtime.pause("policy", paused=True)
        schedule, field, error = self._target.schedule, "", ""
        try:
            schedule = PolicySchedule(decode(push, self._fields), now)
        except RefusedError as refused:
            field, error = refused.field, str(refused)
        except Exception as bug:  # noqa: BLE001  (a bug of ours in reading it is answered too, not looped over)
            guard.record(_NAME, bug)
            error = f"this engine failed to read the policy: {bug!r:.200}"
        directives, refused_orders = self._directives_of(push)
        self._target, self._overdue = _Target(schedule, directives, push.paused), None
        self._open = _Taken(
            push.nonce,
            push.schedule[0].hash if push.schedule else "",
            received_ns,
            now + STEP_DEADLINE,
            field,
            error,
            refused_orders,
            tuple(order.id for kind in (push.quarantines, push.drills) for order in kind),
        )
        return self._answer(self._open)

    def tick(self) -> Report | None:
        """Answer a push that has waited for a step, or move on in the schedule; return what is to be reported."""
        if self._open is not None:
            return self._answer(self._open)
        due = self._target.schedule.at(self._clock()).policy
        if due is self._accepted:
            return None
        if not self._settle("expiry", 0):
            # A step may well take longer than one attempt.
            self._overdue = self._overdue or self._clock() + STEP_DEADLINE
            if self._clock() >= self._overdue:
                self.last_error = _hangs()
            return None
        self._overdue = None
        if self.last_error == _hangs():
            self.last_error = ""
        return _report(moved={"hash": due.hash})

    def _directives_of(self, push: Push) -> tuple[Orders, Mapping[str, str]]:
        from penstock.instrumentation.policy.decode_orders import decode_directives  # noqa: PLC0415  (protobuf)

        try:
            return decode_directives(push, faults_allowed=self._faults_allowed, now_ns=time.monotonic_ns())
        except Exception as bug:  # noqa: BLE001  (as above)
            guard.record(_NAME, bug)
            error = f"this engine failed to read the orders: {bug!r:.200}"
            return self._target.directives, {
                order.id: error for kind in (push.quarantines, push.drills) for order in kind
            }

    def _answer(self, taken: _Taken) -> Report | None:
        if self._settle("push", taken.received_ns):
            self._open = None
            self._tell(taken)
            if not taken.nonce:
                return None
            if not self._paused:
                # The same agent said it on the other stream; its end may be long in coming there, if that one is broken.
                self._runtime.pause("ingest", paused=False)
            return self._ack(taken) if not taken.error else self._nack(taken, taken.error, taken.refused)
        if taken.told or self._clock() < taken.deadline:
            return None
        taken.told = True
        error = self.last_error = _hangs()
        self._note(taken.hash, self._runtime.policy.current.hash, "push", taken.received_ns, error)
        return self._nack(taken, error, dict.fromkeys(taken.orders, error))

    def _settle(self, cause: str, received_ns: int) -> bool:
        """Put what the target says for now in force, or nothing while paused; False if no step ended in time."""
        target = self._target
        accepted = target.schedule.at(self._clock()).policy
        previous = self._runtime.policy.current
        policy, directives = (NO_POLICY, NO_ORDERS) if target.paused else (accepted, target.directives)
        if not self._swap(policy, directives):
            return False
        if target.paused != self._paused:
            cause = "pause" if target.paused else "resume"
        self._accepted, self._paused = accepted, target.paused
        self._runtime.pause("policy", paused=target.paused)
        current = self._runtime.policy.current
        if current != previous or cause in ("pause", "resume"):
            self._note(current.hash, previous.hash, cause, received_ns)
        return True

    def _swap(self, policy: Policy, directives: Orders) -> bool:
        holder = self._runtime.policy
        changed = policy != holder.current
        if not changed and directives == holder.directives:
            return True
        if not holder.swap(policy, min(ATTEMPT, STEP_DEADLINE), directives):
            return False
        if changed:
            self.changed_ns = time.time_ns()
        return True

    def _tell(self, taken: _Taken) -> None:
        """Log and emit what was refused of a push, unless the one before was refused for the same: it may come often."""
        self.last_error = taken.error
        refused = {(taken.hash, taken.error, "push"): taken.error} if taken.error else {}
        refused |= {(name, error, "order"): f"order {name}: {error}" for name, error in taken.refused.items()}
        for key, error in refused.items():
            if key not in self._told:
                logger.warning("penstock refused what the agent pushed: %s", error)
                name, _, cause = key
                current = self._runtime.policy.current.hash
                self._note(name if cause == "push" else "", current, cause, taken.received_ns, error)
        self._told = frozenset(refused)

    def _ack(self, taken: _Taken) -> Report:
        answer = {"nonce": taken.nonce, "hash": self.hash, "paused": self._paused}
        return _report(ack={**answer, "refused_orders": _refusals(taken.refused)})

    def _nack(self, taken: _Taken, error: str, refused: Mapping[str, str]) -> Report:
        answer = {"nonce": taken.nonce, "field": taken.field, "error": error, "hash_in_force": self.hash}
        return _report(nack={**answer, "refused_orders": _refusals(refused)})

    def _note(self, hash_: str, previous: str, cause: str, received_ns: int, error: str = "") -> None:
        fields = {
            "hash": hash_,
            "previous_hash": previous,
            "accepted": not error,
            "error": error,
            "cause": cause,
            "received_time_unix_nano": received_ns,
        }
        self._runtime.emit_event("policy_applied", fields, component=COMPONENT_SCHEDULER)


def _hangs() -> str:
    return f"no step of the engine ended within {STEP_DEADLINE:g} s; it hangs"


def _refusals(refused: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"id": name, "error": error} for name, error in refused.items()]


def _report(**message: Any) -> Report:
    from penstock.proto.v1.policy_pb2 import Report  # noqa: PLC0415  (protobuf)

    return Report(**message)
