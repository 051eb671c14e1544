"""Handshakes with NIXL peers: who asked for one, who waits for it, when it ran and how it ended.

All handshakes of a worker run on one thread, one after the other, and all requests for an engine share one. Records
are made by the threads that ask and completed on the handshake's thread; nothing here waits for the other side.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation import constants as c

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.failures import Failure
    from penstock.instrumentation.vllm.peers import Peer

ENGINES: Final = 4_096
"""Remote engines whose last handshake is remembered, the least recently used go first."""

WAITERS: Final = 64
"""Waiting requests that are named; the rest are counted."""

RUNS: Final = 256
"""Runs that are remembered, to tell who was in the way; the handshake thread needs minutes for that many slow ones."""

DELAY_NS: Final = 50_000_000
"""Shorter waits behind another peer's handshake are not told: good handshakes take some milliseconds each."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run on the handshake's thread: wall clock in nanoseconds, and the peer's monotonic clock minus ours."""

    start_ns: int
    end_ns: int
    clock_offset_ns: int | None = None
    rehearsal: bool = False


@dataclass(frozen=True, slots=True)
class Delay:
    """How long a request's own handshake could not begin because another peer's was running."""

    request_id: str
    delay_ns: int
    caused_by: Peer
    handshake_id: int
    rehearsal: bool


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

    def caused(self, request_id: str, address: str) -> bool:
        """Tell whether its failure is another's doing for *request_id*, which wanted to reach *address*.

        Waiting for the same address is not: that handshake would have failed for each of them. The other may be a
        heartbeat, which has no request.
        """
        return self.initiator != request_id and self.peer.address != address

    def fields(self, run: Run | None, failure: Failure | None, connector: str) -> dict[str, Any]:
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


class Handshakes:
    """The last handshake of each remote engine and the last runs, bounded; methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: OrderedDict[str, Handshake] = OrderedDict()
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._recent: deque[tuple[Handshake, Run]] = deque(maxlen=RUNS)

    def join(self, peer: Peer, request_id: str, future: Any, queued_ns: int) -> Handshake | None:
        """Note that *request_id* waits for *future*; returns the handshake if it is a new one."""
        with self._lock:
            last = self._last.get(peer.engine_id)
            if last is not None and last.future is future:
                last.joined(request_id, queued_ns)
                return None
            new = Handshake(peer, queued_ns, initiator=request_id, future=future)
            new.joined(request_id, queued_ns)
            self._keep(self._last, peer.engine_id, new)
            return new

    def ran(self, engine_id: str, run: Run) -> None:
        """Note a run that has just ended on the handshake's thread."""
        with self._lock:
            self._keep(self._runs, engine_id, run)
            handshake = self._last.get(engine_id)
            if handshake is not None:
                self._recent.append((handshake, run))

    def run_of(self, engine_id: str) -> Run | None:
        """Return and forget the last run for an engine."""
        with self._lock:
            return self._runs.pop(engine_id, None)

    def delays(self, handshake: Handshake, run: Run) -> list[Delay]:
        """Return whom *handshake*, which began as late as *run* says, kept waiting behind another peer's handshake.

        The longest of several that were in the way is the cause; the delay is the whole time in which they were.
        """
        with self._lock:
            others = [each for each in self._recent if each[0].peer.address != handshake.peer.address]
        found = []
        for request_id, since in handshake.waiters.copy().items():
            overlaps = [
                (min(other.end_ns, run.start_ns) - max(other.start_ns, since), culprit, other)
                for culprit, other in others
            ]
            overlaps = [each for each in overlaps if each[0] > 0]
            delay_ns = sum(each[0] for each in overlaps)
            if delay_ns >= DELAY_NS:
                _, culprit, other = max(overlaps, key=lambda each: each[0])
                found.append(Delay(request_id, delay_ns, culprit.peer, culprit.id, other.rehearsal))
        return found

    def last(self, engine_id: str) -> Handshake | None:
        """Return the last handshake with an engine, running or ended."""
        with self._lock:
            return self._last.get(engine_id)

    def recent(self, most: int) -> list[Handshake]:
        """Return at most so many handshakes, each the last with its peer, the oldest first."""
        with self._lock:
            return list(self._last.values())[-most:]

    @staticmethod
    def _keep(table: OrderedDict[str, Any], key: str, value: Any) -> None:
        table[key] = value
        table.move_to_end(key)
        while len(table) > ENGINES:
            table.popitem(last=False)
