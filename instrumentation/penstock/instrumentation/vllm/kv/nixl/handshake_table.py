"""Handshakes with NIXL peers: who asked for one, who waits for it, when it ran and how it ended.

All handshakes of a worker run on one thread, one after the other, and all requests for an engine share one. Records
are made by the threads that ask and completed on the handshake's thread; nothing here waits for the other side.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.kv.nixl.failure_attribution import HandshakeTurn, HandshakeWait, in_the_way

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.naming import Failure, Peer

ENGINES: Final = 4_096
"""Remote engines whose last handshake is remembered, the least recently used go first."""

WAITING: Final = 8_192
"""Requests of which it is remembered since when they wait for a handshake, until they are done."""

WAITERS: Final = 64
"""Waiting requests that are named; the rest are counted."""

RUNS: Final = 256
"""Runs that are remembered, to tell who was in the way; the handshake thread needs minutes for that many slow ones."""

DELAY_NS: Final = 50_000_000
"""Shorter waits behind another peer's handshake are not told: good handshakes take some milliseconds each."""


@dataclass(frozen=True, slots=True)
class HandshakeRun:
    """One run on the handshake's thread: wall clock in nanoseconds, and the peer's monotonic clock minus ours."""

    start_ns: int
    end_ns: int
    clock_offset_ns: int | None = None
    rehearsal: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Delay:
    """How long a request's own handshake could not begin because another peer's was running."""

    request_id: str
    delay_ns: int
    caused_by: HandshakeTurn


@dataclass(slots=True)
class Handshake:
    """One handshake, shared by all requests that waited for it.

    Attributes:
        id: random, so that waiters and victims can name it.
        initiator: the request that asked for it, empty for a heartbeat.
        waiters: requests that wait for it, at most 64, and since when.
        rehearsal: a drill made it fail.
        clock_offset_ns: what its run found, once it has ended.

    """

    peer: Peer
    queued_ns: int
    initiator: str = ""
    id: int = field(default_factory=lambda: secrets.randbits(64) or 1)
    waiters: dict[str, int] = field(default_factory=dict)
    waiters_total: int = 0
    future: Any = None
    rehearsal: bool = False
    clock_offset_ns: int | None = None

    def joined(self, request_id: str, now_ns: int) -> None:
        """Note that a request waits for it; an empty id is a heartbeat, which waits for nothing."""
        if not request_id:
            return
        self.waiters_total += 1
        if len(self.waiters) < WAITERS:
            self.waiters[request_id] = now_ns

    def left(self, request_id: str) -> None:
        """Note that a request does not wait for it any more, and has fallen victim to another one."""
        self.waiters_total -= 1
        self.waiters.pop(request_id, None)

    def caused(self, request_id: str, address: str) -> bool:
        """Tell whether its failure is another's doing for *request_id*, which wanted to reach *address*.

        Waiting for the same address is not: that handshake would have failed for each of them. The other may be a
        heartbeat, which has no request.
        """
        return self.initiator != request_id and self.peer.address != address

    @property
    def has_begun(self) -> bool:
        """Whether it has got to its thread; one that ended has."""
        # Its own thread forgets the future when it ends.
        future = self.future
        return future is None or future.running() or future.done()

    def turn(self, start_ns: int, end_ns: int, *, bad: bool, rehearsal: bool = False) -> HandshakeTurn:
        """Return its time on the thread."""
        return HandshakeTurn(self.peer, self.id, self.initiator, start_ns, end_ns, bad, rehearsal)

    def fields(self, run: HandshakeRun | None, failure: Failure | None, connector: str) -> dict[str, Any]:
        """Return the fields of the wire's ``Handshake``; *run* is None if it never got to its thread."""
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


class HandshakeTable:
    """The last handshake of each remote engine and the last runs, bounded; methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: OrderedDict[str, Handshake] = OrderedDict()
        self._runs: OrderedDict[str, HandshakeRun] = OrderedDict()
        self._recent: deque[HandshakeTurn] = deque(maxlen=RUNS)
        self._running: tuple[str, int, bool] | None = None
        self._waiting: OrderedDict[str, tuple[Handshake, int]] = OrderedDict()

    def join(self, peer: Peer, request_id: str, future: Any, queued_ns: int) -> Handshake | None:
        """Note that *request_id* waits for *future*; returns the handshake if it is a new one."""
        with self._lock:
            handshake = self._last.get(peer.engine_id)
            is_new = handshake is None or handshake.future is not future
            if handshake is None or is_new:
                handshake = Handshake(peer, queued_ns, initiator=request_id, future=future)
                self._keep(self._last, peer.engine_id, handshake)
            if self._waiting.get(request_id, (None,))[0] is not handshake:
                handshake.joined(request_id, queued_ns)
            if request_id:
                # vLLM may ask again for a request whose peer it has let go meanwhile: it still waits.
                _, since_ns = self._waiting.get(request_id, (handshake, queued_ns))
                self._keep(self._waiting, request_id, (handshake, since_ns), WAITING)
            return handshake if is_new else None

    def begins(self, engine_id: str, start_ns: int, *, rehearsal: bool = False) -> None:
        """Note a run that begins on the handshake's thread; *rehearsal*: a drill makes it slow, and fail."""
        with self._lock:
            self._running = (engine_id, start_ns, rehearsal)

    def ran(self, engine_id: str, run: HandshakeRun | None) -> None:
        """Note that a run has ended on the handshake's thread; None if nothing is to be told of it."""
        with self._lock:
            self._running = None
            if run is None:
                return
            self._keep(self._runs, engine_id, run)
            handshake = self._last.get(engine_id)
            if handshake is not None:
                self._recent.append(
                    handshake.turn(run.start_ns, run.end_ns, bad=run.failed, rehearsal=run.rehearsal)
                )

    def run_of(self, engine_id: str) -> HandshakeRun | None:
        """Return and forget the last run for an engine."""
        with self._lock:
            return self._runs.pop(engine_id, None)

    def delays(self, handshake: Handshake, run: HandshakeRun) -> list[Delay]:
        """Return whom *handshake*, which began as late as *run* says, kept waiting behind another peer's handshake.

        The peer that was for the longest is the cause; the delay is the whole time in which others were.
        """
        with self._lock:
            turns = list(self._recent)
            waiting = {each: since for each, since in handshake.waiters.items() if each in self._waiting}
        found = []
        for request_id, since in waiting.items():
            holds = in_the_way(turns, handshake.peer.address, since, run.start_ns)
            delay_ns = sum(hold.held_ns for hold in holds)
            if delay_ns >= DELAY_NS:
                found.append(Delay(request_id, delay_ns, holds[0].longest))
        return found

    def give_up(self, request_id: str, address: str, until_ns: int) -> HandshakeWait | None:
        """Return, once, how a request for the peer at *address* has spent its wait until then; None if it waited for no handshake.

        It no longer counts as a waiter if others are to blame: that its handshake fails later is then no failure of its load.
        """
        with self._lock:
            handshake, since_ns = self._waiting.pop(request_id, (None, 0))
            if handshake is None:
                return None
            turns = self._turns(since_ns, until_ns)
            asked = handshake.peer.address == address and handshake.has_begun
            # By another engine id: it is the same peer that keeps the thread.
            asked = asked or any(turn.peer.address == address for turn in turns)
            holds = in_the_way(turns, address, since_ns, until_ns)
            waited = HandshakeWait(since_ns, until_ns, asked, holds)
            if waited.blames_others:
                handshake.left(request_id)
            return waited

    def done(self, request_id: str) -> None:
        """Forget that a request has waited."""
        with self._lock:
            self._waiting.pop(request_id, None)

    def _turns(self, since_ns: int, now_ns: int) -> list[HandshakeTurn]:
        """Return the turns on the handshakes' thread that ended after *since_ns*, the present one included."""
        # They stand in the order of time.
        turns = list(takewhile(lambda turn: turn.end_ns > since_ns, reversed(self._recent)))
        if self._running is not None:
            engine_id, start_ns, rehearsal = self._running
            handshake = self._last.get(engine_id)
            if handshake is not None:
                turns.append(handshake.turn(start_ns, now_ns, bad=True, rehearsal=rehearsal))
        return turns

    def last(self, engine_id: str) -> Handshake | None:
        """Return the last handshake with an engine, running or ended."""
        with self._lock:
            return self._last.get(engine_id)

    def recent(self, most: int) -> list[Handshake]:
        """Return at most so many handshakes, each the last with its peer, the oldest first."""
        with self._lock:
            return list(self._last.values())[-most:]

    @staticmethod
    def _keep(table: OrderedDict[str, Any], key: str, value: Any, most: int = ENGINES) -> None:
        table[key] = value
        table.move_to_end(key)
        while len(table) > most:
            table.popitem(last=False)
