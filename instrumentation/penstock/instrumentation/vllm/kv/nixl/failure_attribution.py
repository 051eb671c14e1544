"""Whose doing it is that a NIXL load failed: its own peer's, or that of a peer whose handshake was in the way.

vLLM runs the handshakes of a worker on one thread, one after the other, and requests for one engine id share one. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.messages import Culprit
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.kv.nixl.handshake_table import Handshake
    from penstock.instrumentation.vllm.naming import Failure, Peer


_NAMED: Final = 3
"""Peers that a sentence names."""

# What a peer does that is gone or silent. Any other answer to a shared handshake may be due to the engine id that a request
# asked for: the peer is well.
_DEAD: Final = frozenset({c.ERROR_TYPE_REFUSED, c.ERROR_TYPE_TIMEOUT})


@dataclass(frozen=True, slots=True)
class HandshakeTurn:
    """One handshake's time on the thread; *bad*: it failed, or is still running."""

    peer: Peer
    handshake_id: int
    initiator: str
    start_ns: int
    end_ns: int
    bad: bool
    rehearsal: bool = False


@dataclass(frozen=True, slots=True)
class BlockingPeer:
    """For how long the handshakes with one peer were in the way; *longest* is the one that was for the longest."""

    held_ns: int
    longest: HandshakeTurn


def in_the_way(
    turns: Iterable[HandshakeTurn], address: str, since_ns: int, until_ns: int
) -> tuple[BlockingPeer, ...]:
    """Return who kept a request for *address* waiting between two times, the longest first."""
    found: defaultdict[str, list[tuple[int, HandshakeTurn]]] = defaultdict(list)
    for turn in turns:
        held_ns = min(turn.end_ns, until_ns) - max(turn.start_ns, since_ns)
        if held_ns > 0 and turn.peer.address != address:
            found[turn.peer.address].append((held_ns, turn))
    holds = (
        BlockingPeer(sum(held for held, _ in each), max(each, key=lambda pair: pair[0])[1])
        for each in found.values()
    )
    return tuple(sorted(holds, key=lambda hold: -hold.held_ns))


@dataclass(frozen=True, slots=True)
class HandshakeWait:
    """How a request that waited for a handshake has spent the time until it was given up, or until its transfer began.

    Attributes:
        asked: the handshake with its own peer has begun.
        holds: the other peers whose handshakes were in the way, the longest first.

    """

    since_ns: int
    until_ns: int
    asked: bool
    holds: tuple[BlockingPeer, ...]

    @property
    def held_ns(self) -> int:
        """How long others were in the way."""
        return sum(hold.held_ns for hold in self.holds)

    @property
    def blames_others(self) -> bool:
        """Whether it says nothing about the request's own peer, which was not asked at all or had less than half of the time."""
        return not self.asked or (bool(self.holds) and 2 * self.held_ns > self.until_ns - self.since_ns)

    @property
    def text(self) -> str:
        """What happened, in words."""
        words = f"the load waited {_seconds(self.until_ns - self.since_ns)} to start"
        if self.holds:
            named = [
                f"{hold.longest.peer.address} ({_seconds(hold.held_ns)})" for hold in self.holds[:_NAMED]
            ]
            if len(self.holds) > _NAMED:
                named.append(f"{len(self.holds) - _NAMED} more")
            words += f", while vLLM, which does one handshake at a time, was busy with {', '.join(named)}"
        return words if self.asked else f"{words}; its own handshake never began"


@dataclass(frozen=True, slots=True)
class FailureAttribution:
    """Whose doing a ``collateral`` failure is.

    Attributes:
        request_id: the request that asked for the handshake; empty for a heartbeat, and where it is not known.
        handshake_id: of the handshake, 0 where it is not known.
        culprit: the peer of the handshake, None where it is not known.
        rehearsal: a drill made it fail.

    """

    request_id: str = ""
    handshake_id: int = 0
    culprit: Culprit | None = None
    rehearsal: bool = False

    def fields(self) -> dict[str, Any]:
        """Return its fields of the wire's ``TransferFailure``."""
        fields: dict[str, Any] = {
            "caused_by_request_id": self.request_id,
            "handshake_id": self.handshake_id,
        }
        if self.culprit is not None:
            fields["caused_by_peer"] = self.culprit.peer.fields()
        return fields


def of_wait(waited: HandshakeWait) -> FailureAttribution:
    """Blame the peer that was in the way for the longest; it is to be counted unless its handshakes ended well: it is slow."""
    if not waited.holds:
        return FailureAttribution()
    turn = waited.holds[0].longest
    culprit = Culprit(turn.peer)
    if turn.bad:
        culprit = Culprit(turn.peer, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    return FailureAttribution(turn.initiator, turn.handshake_id, culprit, turn.rehearsal)


def of_shared(handshake: Handshake, failure: Failure) -> FailureAttribution:
    """Blame the peer of a handshake that has failed, which was not the one that the request wanted to reach."""
    culprit = Culprit(handshake.peer)
    if failure.error_type in _DEAD:
        culprit = Culprit(handshake.peer, failure.mode, failure.error_type)
    return FailureAttribution(handshake.initiator, handshake.id, culprit, handshake.rehearsal)


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / NANOS:.1f} s"
