"""What the agent knows of one engine's policy: wanted, pushed, answered.

At most one push is outstanding, so that a burst of changes becomes one push of
the newest; a push that nobody answers in time no longer holds back the next.
The kill switch and the end of a drill never wait.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.agent.policy.notice import Notice

if TYPE_CHECKING:
    from penstock.agent.selector import Target
    from penstock.proto.v1.policy_pb2 import PolicyAck, PolicyNack, Subscribe


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an engine is to have, in a form that can be compared.

    Attributes:
        hashes: of the schedule, in order; the first is the one of now.
        begins: when each but the first begins, in seconds since the epoch.
        drills: ids of the fault drills to run.
        quarantines: ids of the orders about peers.

    """

    hashes: tuple[str, ...] = ("",)
    begins: tuple[float, ...] = ()
    paused: bool = False
    drills: tuple[str, ...] = ()
    quarantines: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """Hash of the first step, which held when this was computed."""
        return self.hashes[0]

    def hash_at(self, now: float) -> str:
        """Return the hash of what is to hold at *now*, in seconds since the epoch."""
        return self.hashes[bisect_right(self.begins, now)]


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's word on one push.

    Attributes:
        paused: whether it is passive now. A push that pauses does that whatever else is in it, so also one
            whose policy was refused.
        error: empty if it took effect.
        field: path in the policy's spec that was refused, if it named one.
        time: when it came, in seconds since the epoch.
        took: seconds from the push to the answer.

    """

    wanted: Wanted
    hash: str
    paused: bool
    error: str
    field: str
    time: float
    took: float


@dataclass(frozen=True, slots=True)
class _Pushed:
    nonce: int
    wanted: Wanted
    time: float


@dataclass(slots=True)
class Subscriber:
    """One engine's stream, and after its end what was last known.

    Attributes:
        supported: top-level fields of a policy that the engine knows; empty if it did not say.
        hash_in_force: by the engine's own word.
        faults_allowed: the engine was started with ``PENSTOCK_ALLOW_FAULTS=1``.
        wake: tells the stream's task that there may be something to push.

    """

    target: Target
    epoch: int
    supported: frozenset[str]
    hash_in_force: str
    faults_allowed: bool = False
    connected: bool = True
    wanted: Wanted = field(default_factory=Wanted)
    answer: Answer | None = None
    wake: Notice = field(default_factory=Notice)
    _pushed: _Pushed | None = None
    _nonce: int = 0

    @classmethod
    def from_subscribe(cls, subscribe: Subscribe, target: Target) -> Subscriber:
        """Begin a stream."""
        return cls(
            target,
            subscribe.epoch,
            frozenset(subscribe.supported_fields),
            subscribe.hash_in_force,
            subscribe.faults_allowed,
        )

    @property
    def takes_quarantines(self) -> bool:
        """True if the engine can cut off peers."""
        return "peer_quarantine" in self.supported

    @property
    def settled(self) -> bool:
        """True if the engine has answered what it is to have now."""
        return self.answer is not None and self.answer.wanted == self.wanted

    @property
    def in_force(self) -> bool:
        """True if the engine, now connected, has said that what it is to have is in force."""
        return self.connected and self.settled and self.answer is not None and not self.answer.error

    def waiting_since(self) -> float | None:
        """Return when the push without an answer went out; None if there is none."""
        outstanding = self._pushed is not None and (
            self.answer is None or self.answer.wanted != self._pushed.wanted
        )
        return self._pushed.time if outstanding and self._pushed is not None else None

    def due(self, now: float, patience: float) -> bool:
        """Tell whether a push is to go out at *now*; *patience* is how long one may go unanswered."""
        if self._pushed is None:
            return True
        if self._pushed.wanted == self.wanted:
            return False
        since = self.waiting_since()
        return since is None or now - since >= patience or self._is_urgent(self._pushed.wanted)

    def _is_urgent(self, pushed: Wanted) -> bool:
        return pushed.paused != self.wanted.paused or not set(pushed.drills) <= set(self.wanted.drills)

    def pushed(self, now: float) -> int:
        """Note that what is wanted goes out at *now*; returns its nonce."""
        self._nonce += 1
        self._pushed = _Pushed(self._nonce, self.wanted, now)
        return self._nonce

    def acknowledged(self, ack: PolicyAck, now: float) -> bool:
        """Take an ACK; False if its nonce is not that of the last push."""
        if self._pushed is None or ack.nonce != self._pushed.nonce:
            return False
        self.hash_in_force = ack.hash
        wanted, error = self._pushed.wanted, ""
        if ack.hash not in wanted.hashes:
            error = f"it acknowledged hash {ack.hash[:12] or 'none'}, not {wanted.hash[:12] or 'none'}"
        elif ack.paused != wanted.paused:
            error = "it acknowledged without pausing" if wanted.paused else "it acknowledged but stays paused"
        self.answer = Answer(wanted, ack.hash, ack.paused, error, "", now, now - self._pushed.time)
        return True

    def refused(self, nack: PolicyNack, now: float) -> bool:
        """Take a NACK; False if its nonce is not that of the last push."""
        if self._pushed is None or nack.nonce != self._pushed.nonce:
            return False
        self.hash_in_force = nack.hash_in_force
        self.answer = Answer(
            self._pushed.wanted,
            nack.hash_in_force,
            self._pushed.wanted.paused,
            nack.error or "refused without a reason",
            nack.field,
            now,
            now - self._pushed.time,
        )
        return True
