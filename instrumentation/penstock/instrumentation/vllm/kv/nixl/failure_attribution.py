"""Attributes a failed NIXL load to its own peer, or to a peer whose handshake blocked it.

vLLM runs all handshakes of a worker on one thread in sequence, and requests for one engine id share a handshake. Pure.
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

    from penstock.instrumentation.vllm.naming import Peer


_NAMED_MAX: Final = 3
"""Peers that an error text names; the rest are counted."""

# Errors of a peer that is down or silent. Any other error of a shared handshake may be caused by the engine id that a request
# asked for, with the peer healthy.
UNREACHABLE: Final = frozenset({c.ERROR_TYPE_REFUSED, c.ERROR_TYPE_TIMEOUT})


@dataclass(frozen=True, slots=True)
class HandshakeTurn:
    """One handshake's time on the handshake thread; *failed*: it failed or is still running."""

    peer: Peer
    handshake_id: int
    initiator: str
    start_ns: int
    end_ns: int
    failed: bool
    rehearsal: bool = False


@dataclass(frozen=True, slots=True)
class BlockingPeer:
    """How long the handshakes with one peer blocked a request; *longest* is the turn that blocked it longest."""

    blocked_ns: int
    longest: HandshakeTurn


def blocking_peers(
    turns: Iterable[HandshakeTurn], address: str, since_ns: int, until_ns: int
) -> tuple[BlockingPeer, ...]:
    """Return the peers whose handshakes blocked a request for *address* between two times, the longest first."""
    found: defaultdict[str, list[tuple[int, HandshakeTurn]]] = defaultdict(list)
    for turn in turns:
        blocked_ns = min(turn.end_ns, until_ns) - max(turn.start_ns, since_ns)
        if blocked_ns > 0 and turn.peer.address != address:
            found[turn.peer.address].append((blocked_ns, turn))
    blockers = (
        BlockingPeer(sum(blocked for blocked, _ in each), max(each, key=lambda pair: pair[0])[1])
        for each in found.values()
    )
    return tuple(sorted(blockers, key=lambda blocker: -blocker.blocked_ns))


@dataclass(frozen=True, slots=True)
class HandshakeWait:
    """The wait of a request for its handshake, until its load was cancelled or its transfer started.

    Attributes:
        started: the handshake with its own peer has started.
        blockers: the other peers whose handshakes blocked it, the longest first.

    """

    since_ns: int
    until_ns: int
    started: bool
    blockers: tuple[BlockingPeer, ...]

    @property
    def blocked_ns(self) -> int:
        """Nanoseconds in which handshakes with other peers blocked it."""
        return sum(blocker.blocked_ns for blocker in self.blockers)

    @property
    def is_collateral(self) -> bool:
        """Whether other peers account for the wait: its own handshake never started, or had less than half of the time."""
        return not self.started or (
            bool(self.blockers) and 2 * self.blocked_ns > self.until_ns - self.since_ns
        )

    @property
    def text(self) -> str:
        """The error text."""
        words = f"the load waited {_seconds(self.until_ns - self.since_ns)} to start"
        if self.blockers:
            peers = [
                f"{blocker.longest.peer.address} ({_seconds(blocker.blocked_ns)})"
                for blocker in self.blockers[:_NAMED_MAX]
            ]
            if len(self.blockers) > _NAMED_MAX:
                peers.append(f"{len(self.blockers) - _NAMED_MAX} more")
            words += f", while vLLM, which does one handshake at a time, was busy with {', '.join(peers)}"
        return words if self.started else f"{words}; its own handshake never began"


@dataclass(frozen=True, slots=True)
class FailureAttribution:
    """The cause of a ``collateral`` failure.

    Attributes:
        request_id: the request that asked for the handshake; empty for a heartbeat or if unknown.
        handshake_id: of the handshake; 0 if unknown.
        culprit: the peer of the handshake; None if unknown.
        rehearsal: a fault drill caused it.

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


def attribute_wait(waited: HandshakeWait) -> FailureAttribution:
    """Attribute a wait to the peer that blocked it longest; it counts as a failure of that peer if its handshake failed."""
    if not waited.blockers:
        return FailureAttribution()
    turn = waited.blockers[0].longest
    culprit = Culprit(turn.peer)
    if turn.failed:
        culprit = Culprit(turn.peer, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    return FailureAttribution(turn.initiator, turn.handshake_id, culprit, turn.rehearsal)


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / NANOS:.1f} s"
