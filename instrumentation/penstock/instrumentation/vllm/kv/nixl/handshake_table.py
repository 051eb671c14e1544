"""Handshakes with NIXL peers: initiator, waiting requests, time on the handshake thread, result.

All handshakes of a worker run on one thread in sequence, and all requests for an engine share one. The requesting threads
create records, the handshake thread completes them; nothing here blocks on IO.

What else is known of a handshake lies by what it is for: ``handshake_mixin.py`` sees vLLM begin and end it, and why it failed;
``observer.py`` emits it and the delays behind it; ``attempt_failures.py`` emits the loads that fail with it;
``failure_attribution.py`` says whose fault a wait for it was; ``snapshot.py`` shows who waits now.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.kv.nixl.failure_attribution import (
    UNREACHABLE,
    FailureAttribution,
    HandshakeTurn,
    HandshakeWait,
    blocking_peers,
)
from penstock.instrumentation.vllm.messages import Culprit
from penstock.instrumentation.vllm.naming import UNKNOWN

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.naming import Failure, Peer

ENGINES_MAX: Final = 4_096
"""Remote engines whose last handshake is kept; the least recently used is forgotten first."""

WAITING_MAX: Final = 8_192
"""Requests whose wait for a handshake is kept until they are finished."""

WAITERS_MAX: Final = 64
"""Waiting requests that an event names; the rest are counted."""

RUNS_MAX: Final = 256
"""Runs that are kept to find blocking peers; that many slow handshakes take minutes."""

EDGES_MAX: Final = 1_024
"""Edges that wait for the scheduler's next step; an idle engine has no steps."""

OTHERS_MAX: Final = 16
"""Other addresses of one engine id that are kept, and shown in a snapshot."""

ASK_AGAIN_NS: Final = 60_000_000_000
"""Between two questions to an address that does not answer who is there."""

HandshakeEdge: TypeAlias = "tuple[str, int, bool]"
"""A request, a moment (wall clock, nanoseconds), and whether its handshake began then; it came to wait behind others otherwise."""

HandshakeArguments: TypeAlias = "tuple[int, tuple[Any, ...], dict[str, Any]]"
"""The ranks of the peer, and what stands behind the engine id."""

MIN_DELAY_NS: Final = 50_000_000
"""Shorter waits behind another peer's handshake are not emitted: a handshake takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class HandshakeRun:
    """One run on the handshake thread: wall clock in nanoseconds; *clock_offset_ns* is the peer's monotonic clock minus ours.

    *arguments*: of vLLM's call, but for host, port and engine id.
    """

    start_ns: int
    end_ns: int
    clock_offset_ns: int | None = None
    rehearsal: bool = False
    failed: bool = False
    arguments: HandshakeArguments | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """How long handshakes with other peers delayed a request's own; *caused_by* is the longest of them."""

    request_id: str
    delay_ns: int
    caused_by: HandshakeTurn


@dataclass(slots=True)
class OtherAddress:
    """An address that requests name for an engine id under which vLLM keeps the engine of another address, and goes on with that.

    Attributes:
        peer: as requests name it.
        target: its host and port, as requests name them.
        owner: ``ADDRESS_OWNER_*``, who answers there.
        dismissed: an engine with another id answers there: no two share this one.
        transfers: that were begun with the known engine in its stead.
        requests: the last of them, while it is not known who answers.
        asked_ns: when it was last asked; 0 for never.

    """

    peer: Peer
    target: tuple[str, int]
    first_ns: int
    owner: int = c.ADDRESS_OWNER_UNSPECIFIED
    dismissed: bool = False
    transfers: int = 0
    requests: deque[str] = field(default_factory=lambda: deque(maxlen=WAITERS_MAX))
    asked_ns: int = 0

    @property
    def is_accused(self) -> bool:
        """Whether it may be another engine's with the same id."""
        return self.owner != c.ADDRESS_OWNER_SAME and not self.dismissed

    def is_due(self, now_ns: int) -> bool:
        """Return whether it is to be asked who is there."""
        unknown = self.owner == c.ADDRESS_OWNER_UNSPECIFIED and not self.dismissed
        return unknown and now_ns - self.asked_ns >= ASK_AGAIN_NS


@dataclass(slots=True)
class Handshake:
    """One handshake, shared by all requests that wait for it.

    Attributes:
        id: random; events of delayed and failed requests refer to it.
        initiator: the request that asked for it; empty for a heartbeat.
        waiters: requests that wait for it, at most 64, with the start of their wait.
        queued: those of them that came to wait behind other peers' handshakes.
        rehearsal: a drill failed it.
        clock_offset_ns: of its run; None until it ends.
        failure: why it failed; None while it runs and if it did not.
        arguments: of its run; None until it ends.
        others: by address.

    """

    peer: Peer
    queued_ns: int
    initiator: str = ""
    id: int = field(default_factory=lambda: secrets.randbits(64) or 1)
    waiters: dict[str, int] = field(default_factory=dict)
    waiters_total: int = 0
    queued: list[str] = field(default_factory=list)
    future: Any = None
    rehearsal: bool = False
    clock_offset_ns: int | None = None
    failure: Failure | None = None
    arguments: HandshakeArguments | None = None
    others: dict[str, OtherAddress] = field(default_factory=dict)

    def add_waiter(self, request_id: str, now_ns: int) -> None:
        """Add a waiting request; the empty id of a heartbeat is ignored."""
        if not request_id:
            return
        self.waiters_total += 1
        if len(self.waiters) < WAITERS_MAX:
            self.waiters[request_id] = now_ns

    def remove_waiter(self, request_id: str) -> None:
        """Remove a request that was cancelled because of another handshake."""
        self.waiters_total -= 1
        self.waiters.pop(request_id, None)

    def is_collateral_for(self, request_id: str, address: str) -> bool:
        """Return whether its failure is collateral for *request_id*, which wanted to reach *address*.

        It is not if both addresses are equal: the request's own handshake would have failed too. The initiator may be a
        heartbeat, which has no request.
        """
        return self.initiator != request_id and self.peer.address != address

    @property
    def has_started(self) -> bool:
        """Whether it has started on the handshake thread, or has ended."""
        # The handshake thread drops the future at its end.
        future = self.future
        return future is None or future.running() or future.done()

    def turn(self, start_ns: int, end_ns: int, *, failed: bool, rehearsal: bool = False) -> HandshakeTurn:
        """Return its time on the handshake thread."""
        return HandshakeTurn(self.peer, self.id, self.initiator, start_ns, end_ns, failed, rehearsal)

    def fields(self, run: HandshakeRun | None, failure: Failure | None, connector: str) -> dict[str, Any]:
        """Return the fields of the wire's ``Handshake``; *run* is None if it never started."""
        fields: dict[str, Any] = {
            "id": self.id,
            "connector": connector,
            "peer": self.peer.fields(),
            "result": c.TRANSFER_RESULT_OK if failure is None else c.TRANSFER_RESULT_ERROR,
            "queued_time_unix_nano": self.queued_ns,
            "waiting_request_ids": list(self.waiters),
            "waiters_total": self.waiters_total,
        }
        if run is not None:
            fields["start_time_unix_nano"] = run.start_ns
            fields["end_time_unix_nano"] = run.end_ns
            if run.clock_offset_ns is not None:
                fields["clock_offset_nano"] = run.clock_offset_ns
        if failure is not None:
            fields["error_type"] = failure.error_type
            fields["error_class"] = failure.error_class
            fields["error_text"] = failure.error_text
        return fields


def attribute_shared(handshake: Handshake, failure: Failure) -> FailureAttribution:
    """Attribute the failure of a shared handshake to its peer, which is not the request's own."""
    culprit = Culprit(handshake.peer)
    if failure.error_type in UNREACHABLE:
        culprit = Culprit(handshake.peer, failure.mode, failure.error_type)
    return FailureAttribution(handshake.initiator, handshake.id, culprit, handshake.rehearsal)


class HandshakeTable:
    """The last handshake of each remote engine and the last runs, bounded. Thread-safe.

    Attributes:
        edges: what has changed for waiting requests since the scheduler heard of it last.

    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: OrderedDict[str, Handshake] = OrderedDict()
        self._runs: OrderedDict[str, HandshakeRun] = OrderedDict()
        self._recent: deque[HandshakeTurn] = deque(maxlen=RUNS_MAX)
        self._running: tuple[str, int, bool] | None = None
        self._waiting: OrderedDict[str, tuple[Handshake, int]] = OrderedDict()
        # Engines whose handshake is submitted and has not started, in the order of the thread.
        self._pending: OrderedDict[str, None] = OrderedDict()
        self.edges: deque[HandshakeEdge] = deque(maxlen=EDGES_MAX)

    def join(self, peer: Peer, request_id: str, future: Any, queued_ns: int) -> Handshake | None:
        """Add *request_id* to the handshake of *future*; return the handshake if it is new."""
        with self._lock:
            handshake = self._last.get(peer.engine_id)
            is_new = handshake is None or handshake.future is not future
            if handshake is None or is_new:
                handshake = Handshake(peer, queued_ns, initiator=request_id, future=future)
                self._keep(self._last, peer.engine_id, handshake)
            if is_new and not handshake.has_started:
                self._keep(self._pending, peer.engine_id, None)
            if self._waiting.get(request_id, (None,))[0] is not handshake:
                handshake.add_waiter(request_id, queued_ns)
                known = len(handshake.queued) < EDGES_MAX
                if request_id and known and self._is_behind_others(handshake):
                    handshake.queued.append(request_id)
                    self.edges.append((request_id, queued_ns, False))
            if request_id:
                # vLLM may ask again for a request whose peer it has dropped: the wait continues.
                _, since_ns = self._waiting.get(request_id, (handshake, queued_ns))
                self._keep(self._waiting, request_id, (handshake, since_ns), WAITING_MAX)
            return handshake if is_new else None

    def on_started(self, engine_id: str, start_ns: int, *, rehearsal: bool = False) -> None:
        """Record the start of a run on the handshake thread; *rehearsal*: a drill delays and fails it."""
        with self._lock:
            self._running = (engine_id, start_ns, rehearsal)
            self._pending.pop(engine_id, None)
            handshake = self._last.get(engine_id)
            if handshake is not None:
                self.edges.extend((each, start_ns, True) for each in handshake.queued)
                handshake.queued.clear()

    def _is_behind_others(self, handshake: Handshake) -> bool:
        """Return whether a handshake waits until others have run; the thread takes them in their order."""
        engine_id = handshake.peer.engine_id
        if engine_id not in self._pending:
            return False
        return self._running is not None or next(iter(self._pending)) != engine_id

    def on_finished(self, engine_id: str, run: HandshakeRun | None) -> None:
        """Record the end of a run on the handshake thread; None discards it."""
        with self._lock:
            self._running = None
            self._pending.pop(engine_id, None)
            if run is None:
                return
            self._keep(self._runs, engine_id, run)
            handshake = self._last.get(engine_id)
            if handshake is not None:
                self._recent.append(
                    handshake.turn(run.start_ns, run.end_ns, failed=run.failed, rehearsal=run.rehearsal)
                )

    def pop_run(self, engine_id: str) -> HandshakeRun | None:
        """Remove and return the last run for an engine."""
        with self._lock:
            return self._runs.pop(engine_id, None)

    def delays(self, handshake: Handshake, run: HandshakeRun) -> list[Delay]:
        """Return the waiting requests of *handshake* that other peers' handshakes delayed until the start of *run*.

        The delay is the whole time of the other handshakes; the longest of them is the cause.
        """
        with self._lock:
            turns = list(self._recent)
            waiting = {each: since for each, since in handshake.waiters.items() if each in self._waiting}
        found = []
        for request_id, since in waiting.items():
            blockers = blocking_peers(turns, handshake.peer.address, since, run.start_ns)
            delay_ns = sum(blocker.blocked_ns for blocker in blockers)
            if delay_ns >= MIN_DELAY_NS:
                found.append(Delay(request_id, delay_ns, blockers[0].longest))
        return found

    def abandon(self, request_id: str, address: str, until_ns: int) -> HandshakeWait | None:
        """Remove and return the wait of a request for the peer at *address*; None if it waited for no handshake.

        A collateral wait also leaves the handshake's waiters: a later failure of the handshake is not one of this load.
        """
        with self._lock:
            handshake, since_ns = self._waiting.pop(request_id, (None, 0))
            if handshake is None:
                return None
            turns = self._turns(since_ns, until_ns)
            started = handshake.peer.address == address and handshake.has_started
            # Under another engine id: the same peer occupies the thread.
            started = started or any(turn.peer.address == address for turn in turns)
            blockers = blocking_peers(turns, address, since_ns, until_ns)
            waited = HandshakeWait(since_ns, until_ns, started, blockers)
            if waited.is_collateral:
                handshake.remove_waiter(request_id)
            return waited

    def waiting(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, how many, oldest start) of the requests whose handshake is queued or runs."""
        with self._lock:
            waits = [
                (handshake, since)
                for handshake, since in self._waiting.values()
                if handshake.future is not None
            ]
        groups: dict[Peer, tuple[int, int]] = {}
        for handshake, since in waits:
            count, oldest = groups.get(handshake.peer, (0, since))
            groups[handshake.peer] = (count + 1, min(oldest, since))
        return [(peer, *group) for peer, group in groups.items()]

    def forget(self, request_id: str) -> None:
        """Forget the wait of a request."""
        with self._lock:
            self._waiting.pop(request_id, None)

    def _turns(self, since_ns: int, now_ns: int) -> list[HandshakeTurn]:
        """Return the turns on the handshake thread that ended after *since_ns*, the current one included."""
        # In order of time.
        turns = list(takewhile(lambda turn: turn.end_ns > since_ns, reversed(self._recent)))
        if self._running is not None:
            engine_id, start_ns, rehearsal = self._running
            handshake = self._last.get(engine_id)
            if handshake is not None:
                turns.append(handshake.turn(start_ns, now_ns, failed=True, rehearsal=rehearsal))
        return turns

    def meet(
        self, named: Peer, target: tuple[str, int], now_ns: int
    ) -> tuple[Handshake, OtherAddress] | None:
        """Return the last handshake of the engine id of *named* and what is known of its address, if that is another one."""
        handshake = self._last.get(named.engine_id)
        if handshake is None or UNKNOWN in (handshake.peer.address, named.address):
            return None
        if handshake.peer.address == named.address:
            return None
        with self._lock:
            other = handshake.others.get(named.address)
            if other is None and len(handshake.others) < OTHERS_MAX:
                other = handshake.others[named.address] = OtherAddress(named, target, now_ns)
        return None if other is None else (handshake, other)

    def last(self, engine_id: str) -> Handshake | None:
        """Return the last handshake with an engine, running or finished."""
        with self._lock:
            return self._last.get(engine_id)

    def recent(self, limit: int) -> list[Handshake]:
        """Return the last handshakes, one for each engine, the oldest first."""
        with self._lock:
            return list(self._last.values())[-limit:]

    @staticmethod
    def _keep(table: OrderedDict[str, Any], key: str, value: Any, limit: int = ENGINES_MAX) -> None:
        table[key] = value
        table.move_to_end(key)
        while len(table) > limit:
            table.popitem(last=False)
