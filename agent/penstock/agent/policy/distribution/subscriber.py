"""The policy state of one engine: desired, pushed, answered.

At most one push is outstanding, so that a burst of changes becomes one push of the newest state; an unanswered push is
sent again with the newest state. The kill switch and the end of a drill are pushed at once.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.agent.aio import ChangeSignal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.agent.model import PolicySource
    from penstock.agent.parsing import Target
    from penstock.agent.sources import Ownership
    from penstock.proto.v1.policy_pb2 import OrderRefusal, PolicyAck, PolicyMoved, PolicyNack, Subscribe

MAX_TEXT = 1024
"""Maximum characters kept of an engine's text."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The desired state of an engine, comparable.

    Attributes:
        hashes: of the schedule's steps, from the current one.
        begins: start of each step but the first, seconds since the epoch.
        drills: ids of the fault drills to run.
        quarantines: ids of the quarantine orders.
        sources: the policies of each step, for an engine that takes their names.

    """

    hashes: tuple[str, ...] = ("",)
    begins: tuple[float, ...] = ()
    paused: bool = False
    drills: tuple[str, ...] = ()
    quarantines: tuple[str, ...] = ()
    sources: tuple[tuple[PolicySource, ...], ...] = ()

    @property
    def anything(self) -> bool:
        """True if a pause would hold something back."""
        return any(self.hashes) or bool(self.drills or self.quarantines)

    @property
    def hash(self) -> str:
        """Hash of the first step, in force when this was computed."""
        return self.hashes[0]

    def hash_at(self, now: float) -> str:
        """Return the hash of the step at *now*, seconds since the epoch."""
        return self.hashes[bisect_right(self.begins, now)]


@dataclass(frozen=True, slots=True)
class EngineAck:
    """The engine's answer to one push.

    Attributes:
        nonce: of the push.
        paused: whether the engine is passive. A push that pauses takes effect even if its policy is refused.
        error: empty if the push took effect.
        field: path in the policy's spec that was refused, if named.
        time: of arrival, seconds since the epoch.
        took: seconds from the change to the answer; from the push, if the same state had been answered before.
        refused_orders: error by id of a refused drill or quarantine order; the other orders are in force, even if the
            policy is refused.

    """

    nonce: int
    wanted: DesiredState
    hash: str
    paused: bool
    error: str
    field: str
    time: float
    took: float
    refused_orders: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Pushed:
    """A push sent at *time*; *since*: when its state was first desired, or was due again."""

    nonce: int
    wanted: DesiredState
    time: float
    since: float


@dataclass(slots=True)
class Subscriber:
    """The stream of one engine, and after its end its last state.

    Attributes:
        supported: top-level policy fields that the engine supports; empty if unknown.
        hash_taken: of the policy that the engine reports: in force, or held back while paused.
        wanted: its desired state; set by :meth:`set_desired`.
        faults_allowed: the engine was started with ``PENSTOCK_ALLOW_FAULTS=1``.
        takes_policy_names: it accepts the names of policies in a push.
        paused_before: it was paused when the stream began.
        stacks_asked: number of a question for its stacks that the next push has; 0 for none.
        ousted: the former owner of the engine is back, so this stream must end.
        wake: wakes the stream's task when a push may be due.

    """

    target: Target
    epoch: int
    supported: frozenset[str]
    hash_taken: str
    faults_allowed: bool = False
    paused_before: bool = False
    takes_policy_names: bool = False
    connected: bool = True
    ownership: Ownership | None = None
    stacks_asked: int = 0
    ousted: bool = False
    wanted: DesiredState = field(default_factory=DesiredState)
    answer: EngineAck | None = None
    wake: ChangeSignal = field(default_factory=ChangeSignal)
    _wanted_at: float | None = None
    _pushed: _Pushed | None = None
    _nonce: int = 0
    _moved_at: float | None = None

    @classmethod
    def from_subscribe(cls, subscribe: Subscribe, target: Target) -> Subscriber:
        """Return the subscriber of a new stream."""
        return cls(
            target,
            subscribe.epoch,
            frozenset(subscribe.supported_fields),
            _truncate(subscribe.hash_in_force),
            subscribe.faults_allowed,
            subscribe.paused,
            subscribe.takes_policy_names,
        )

    def oust(self) -> None:
        """End the stream: another process owns the engine."""
        self.ousted = True
        self.wake.notify()

    @property
    def takes_quarantines(self) -> bool:
        """True if the engine supports quarantine."""
        return "peer_quarantine" in self.supported

    @property
    def settled(self) -> bool:
        """True if the engine has answered the last push, and that push has the desired state."""
        return self._last_answer is not None and self._last_answer.wanted == self.wanted

    @property
    def paused(self) -> bool:
        """True if the engine last reported to be passive."""
        return self.paused_before if self.answer is None else self.answer.paused

    @property
    def hash_in_force(self) -> str:
        """Hash of the policy in force as reported by the engine; empty for vLLM's own configuration."""
        return "" if self.paused else self.hash_taken

    @property
    def held_back(self) -> bool:
        """True if the kill switch holds the desired state back."""
        return self.paused and self.wanted.anything

    @property
    def in_force(self) -> bool:
        """True if the engine is connected and has acknowledged the desired state."""
        answer = self._last_answer
        return (
            self.connected and self.settled and answer is not None and not answer.error and not self.held_back
        )

    def set_desired(self, wanted: DesiredState, now: float) -> bool:
        """Set the desired state from *now* on; return whether it is new."""
        if wanted == self.wanted and self._wanted_at is not None:
            return False
        self.wanted, self._wanted_at = wanted, now
        return True

    def order_error(self, order_id: str) -> str | None:
        """Return why the engine refuses an order, empty if it does not; None while unknown."""
        answer = self._last_answer
        if not self.connected or answer is None:
            return None
        if order_id not in (*answer.wanted.drills, *answer.wanted.quarantines):
            return None
        return answer.refused_orders.get(order_id, "")

    def waiting_since(self) -> float | None:
        """Return since when the last push is unanswered; None if it is answered."""
        return None if self._pushed is None or self._last_answer is not None else self._pushed.since

    def due_at(self, now: float, patience: float) -> float | None:
        """Return when a push is due again without a change; None for never.

        Due if it is unanswered, or if the engine's schedule has moved to a step that is not current at *now*.
        """
        if self._pushed is None:
            return None
        if self._last_answer is None:
            return self._pushed.time + patience
        strayed = self._moved_at is not None and self.hash_taken != self.wanted.hash_at(now)
        return self._moved_at + patience if strayed and self._moved_at is not None else None

    def due(self, now: float, patience: float) -> bool:
        """Return whether a push is due at *now*; *patience*: seconds that one may be unanswered."""
        if self._pushed is None or self.stacks_asked:
            return True
        again = self.due_at(now, patience)
        # What was pushed later than now was pushed before the clock was set back.
        if again is not None and not again - patience <= now < again:
            return True
        changed = self._pushed.wanted != self.wanted
        return changed and (self._last_answer is not None or self._is_urgent(self._pushed.wanted))

    def _is_urgent(self, pushed: DesiredState) -> bool:
        return pushed.paused != self.wanted.paused or not set(pushed.drills) <= set(self.wanted.drills)

    def record_push(self, now: float) -> int:
        """Record that the desired state is pushed at *now*; return the nonce."""
        since = self.waiting_since()
        if self._pushed is None or self._pushed.wanted != self.wanted:
            since = now if self._wanted_at is None else self._wanted_at
        elif since is None:
            since = now
        self._nonce += 1
        self._pushed = _Pushed(self._nonce, self.wanted, now, since)
        return self._nonce

    def on_ack(self, ack: PolicyAck, now: float) -> bool:
        """Apply an ACK; return False if its nonce is stale."""
        if self._pushed is None or ack.nonce != self._pushed.nonce:
            return False
        wanted, error = self._pushed.wanted, ""
        if ack.hash not in wanted.hashes:
            error = f"it acknowledged hash {ack.hash[:12] or 'none'}, not {wanted.hash[:12] or 'none'}"
        elif ack.paused != wanted.paused:
            error = "it acknowledged without pausing" if wanted.paused else "it acknowledged but stays paused"
        self._answered(self._pushed, ack.hash, error, "", now, ack.refused_orders, paused=ack.paused)
        return True

    def on_nack(self, nack: PolicyNack, now: float) -> bool:
        """Apply a NACK; return False if its nonce is stale."""
        if self._pushed is None or nack.nonce != self._pushed.nonce:
            return False
        error = nack.error or "refused without a reason"
        paused = self._pushed.wanted.paused
        self._answered(
            self._pushed, nack.hash_in_force, error, nack.field, now, nack.refused_orders, paused=paused
        )
        return True

    def on_moved(self, moved: PolicyMoved, now: float) -> None:
        """Apply a report that the engine's schedule has moved to its next step."""
        self.hash_taken, self._moved_at = _truncate(moved.hash), now

    @property
    def _last_answer(self) -> EngineAck | None:
        """The answer to the last push; None if only an earlier one was answered."""
        answered = (
            self.answer is not None and self._pushed is not None and self.answer.nonce == self._pushed.nonce
        )
        return self.answer if answered else None

    def _answered(
        self,
        pushed: _Pushed,
        taken: str,
        error: str,
        field_: str,
        now: float,
        refusals: Iterable[OrderRefusal],
        *,
        paused: bool,
    ) -> None:
        self.hash_taken, self._moved_at = _truncate(taken), None
        ordered = {*pushed.wanted.drills, *pushed.wanted.quarantines}
        self.answer = EngineAck(
            pushed.nonce,
            pushed.wanted,
            self.hash_taken,
            paused,
            _truncate(error),
            _truncate(field_),
            now,
            max(0.0, now - pushed.since),
            {
                each.id: _truncate(each.error) or "refused without a reason"
                for each in refusals
                if each.id in ordered
            },
        )


def _truncate(text: str) -> str:
    return text[:MAX_TEXT]
