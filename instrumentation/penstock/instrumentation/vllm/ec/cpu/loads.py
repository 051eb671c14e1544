"""What the scheduler of an ``ECCPUConnector`` reads from producers, and what it falls back from.

It asks the producer that a request names for an item (a probe that is answered by a grant), reads it over NIXL into this machine's
memory, and copies it to the workers in the step that computes on it. An item that it cannot obtain is encoded here if the request has its
media; vLLM only logs that.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec import EcFailure, EcTransfer, Loss, RequestLoads
from penstock.instrumentation.vllm.ec.cpu.reads import (
    MISSES,
    REFUSALS,
    Read,
    ReadRehearsal,
    RehearsedError,
    announced_peer,
    withdraw,
)
from penstock.instrumentation.vllm.naming import UNKNOWN, Peer, address, cut, error_type_of
from penstock.instrumentation.vllm.requests import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.instrumentation.orders import Drill

CAPACITY: Final = 4096
"""Failed reads that are remembered; beyond it the oldest is forgotten."""

HOST: Final = Peer("host")
"""This machine's memory."""

_READ_FAILED: Final = "the remote read failed"
_NOT_STARTED: Final = "the read could not be started"
_TIMED_OUT: Final = "the remote wait exceeded"


class CpuLoads(RequestLoads):
    """The reads of one ``ECCPUScheduler``.

    Attributes:
        asking: the request that the connector is asked about.

    """

    load_failure_default = "recompute"
    place = HOST

    def __init__(self, part: Any, on_session: Callable[[Any], None]) -> None:
        """Read the tables of *part*; *on_session* instruments a session with a producer."""
        super().__init__()
        self.asking = ""
        self._part = part
        self._on_session = on_session
        self._reads: dict[str, Read] = {}
        self._causes: OrderedDict[str, Cause] = OrderedDict()
        # When the reads began that have ended well in this step.
        self._completed: dict[str, int] = {}
        # By request, bounded by the scheduler's own: what the connector has given up without a fall-back.
        self._lost: dict[str, dict[str, Cause]] = {}
        self._rehearsal = ReadRehearsal()
        # The item whose read a drill has just made fail; vLLM says next that it could not be started.
        self._rehearsed = ""
        self._looked_ns = 0

    # As RequestLoads says

    def waits_for(self, item: str) -> bool:
        """Return whether *item* is asked for, read, or waits for room."""
        part = self._part
        return (
            item in part._in_flight
            or item in part._step_completed
            or any(item == waiting for _, waiting in part._deferred_since)
        )

    def transfer_began(self, item: str) -> int | None:
        """Return when the read of *item* was granted that goes on, or has ended well in this step; None before."""
        read = self._reads.get(item)
        if read is not None:
            return read.began_ns or None
        return (self._completed.get(item) or None) if item in self._part._step_completed else None

    def peer_of(self, item: str) -> Peer | None:
        """Return the producer that *item* is read from, or was."""
        read, cause = self._reads.get(item), self._causes.get(item)
        if read is not None:
            return read.peer
        return cause.peer if cause is not None else None

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, reads that are granted and have not ended, the oldest one's start)."""
        groups: dict[Peer, tuple[int, int]] = {}
        for read in self._reads.copy().values():
            if read.began_ns:
                count, oldest = groups.get(read.peer, (0, read.began_ns))
                groups[read.peer] = (count + 1, min(oldest, read.began_ns))
        return [(peer, count, oldest) for peer, (count, oldest) in groups.items()]

    def losses(self, request: Any, items: Collection[str]) -> dict[str, Loss]:
        """Return the items that the connector has no fall-back for."""
        lost = self._lost.get(request.request_id, {})
        return {item: Loss(cause) for item, cause in lost.items() if item in items}

    def do_without(self, request: Any, item: str, cause: Cause) -> None:
        """Have *request* encode *item* here, as the connector does: it no longer says who has it."""
        super().do_without(request, item, cause)
        withdraw(request, item)
        self.end_wait(request, item)

    def on_finished(self, request_id: str) -> None:
        """Forget a request that has finished."""
        super().on_finished(request_id)
        self._lost.pop(request_id, None)

    # Fall-backs

    def on_unavailable(self, request: Any, item: str, why: str) -> Cause:
        """Return why *item* cannot be had, by vLLM's words *why*; report it unless its read was."""
        known = self._causes.get(item)
        if why == _READ_FAILED:
            return known if known is not None else Cause(c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER)
        if why == _NOT_STARTED and self._rehearsed == item:
            self._rehearsed = ""
            if known is not None:
                return known
        mode, error_type = c.FAILURE_MODE_SETUP, c.ERROR_TYPE_INCOMPATIBLE
        if why.startswith(_TIMED_OUT):
            mode, error_type = c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT
        elif why == _NOT_STARTED:
            error_type = c.ERROR_TYPE_OTHER
        peer = self.peer_of(item) or announced_peer(request, item)
        if self._observer is not None:
            self._observer.failed(
                EcFailure(
                    item,
                    mode,
                    error_type,
                    cut(why),
                    peer=peer,
                    request_id=request.request_id,
                    inconclusive=True,
                )
            )
        return Cause(mode, error_type, peer=peer)

    def decide(self, request: Any, item: str, cause: Cause) -> bool | None:
        """Return whether a policy has *request* encode *item* here (True) or fail (False); None without one."""
        return None if self._decider is None else self._decider.decide_loss(request, item, cause)

    def on_decided_by_vllm(self, request: Any, item: str, cause: Cause, *, falls_back: bool) -> None:
        """Report that vLLM has *request* encode *item* here, or that it is about to give it up."""
        if not falls_back:
            self._lost.setdefault(request.request_id, {})[item] = cause
        elif self._decider is not None:
            self._decider.on_own_fallback(request, item, cause)

    def end_wait(self, request: Any, item: str) -> None:
        """End the connector's own clock of a wait."""
        self._part._deferred_since.pop((request.request_id, item), None)
        self._rehearsal.end(item)

    # Reads

    def before_read(self, item: str, info: dict[str, Any]) -> bool:
        """Return whether the read of *item* may be asked for now.

        Raises:
            RehearsedError: a fault drill makes it fail, which is reported.

        """
        peer = Peer(address(info.get("peer_host"), info.get("peer_port")))
        drill = self._rehearsal.failing(item, peer.address)
        if drill is None:
            return not self._rehearsal.is_held(item)
        now, text = time.time_ns(), f"drill {drill.id}"
        error = (drill.mode, c.ERROR_TYPE_OTHER, "", text)
        read = Read(item, peer, 0, self.asking, now, error=error, rehearsal=True)
        if drill.mode == c.FAILURE_MODE_PROBE:
            self._probed(read, c.PROBE_RESULT_ERROR)
        else:
            read.began_ns = now
        self._reads[item] = read
        self._failed(item, error)
        self._rehearsed = item
        raise RehearsedError(text)

    def on_asked(self, item: str, info: dict[str, Any], nbytes: int, session: Any) -> None:
        """Record that a producer was asked for *item*."""
        self._on_session(session)
        session._penstock_loads = self
        peer = Peer(address(info["peer_host"], info["peer_port"]))
        self._reads[item] = Read(item, peer, nbytes, self.asking, time.time_ns())

    def on_answer(self, item: str, status: str, *, began: bool) -> None:
        """Report a producer's answer, the name of an ``XferStatus``; *began*: the read has."""
        read = self._reads.get(item)
        if read is None:
            return
        if status == "OK":
            self._probed(read, c.PROBE_RESULT_HIT)
            if began:
                read.began_ns = time.time_ns()
            return
        self._probed(read, c.PROBE_RESULT_MISS if status in MISSES else c.PROBE_RESULT_ERROR)
        refusal = REFUSALS.get(status, (c.FAILURE_MODE_PROBE, c.ERROR_TYPE_OTHER))
        read.again = refusal is None
        if refusal is not None:
            read.error = (*refusal, "", f"the producer answers {status}")

    def on_error(self, item: str, mode: int, error: BaseException) -> None:
        """Record the error that ends the read of *item*."""
        read = self._reads.get(item)
        if read is not None:
            text = cut(str(error))
            read.error = (mode, error_type_of(error, mode, text), type(error).__name__, text)

    def on_broken(self, item: str, error: BaseException) -> None:
        """Report the error that ends the read of *item* and is about to leave the connector."""
        self.on_error(item, c.FAILURE_MODE_SETUP, error)
        self._failed(item, (c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER, "", ""))

    def on_results(self, results: Any, *, peer_is_down: bool, looked_ns: int = 0) -> None:
        """Report the reads that have ended, a session's ``ConsumerSessionResults``; *looked_ns*: when it was looked at before."""
        self._looked_ns = looked_ns
        reset, timeout, other = c.ERROR_TYPE_REMOTE_RESET, c.ERROR_TYPE_TIMEOUT, c.ERROR_TYPE_OTHER
        completed = self._part._step_completed
        self._completed = {item: began_ns for item, began_ns in self._completed.items() if item in completed}
        for item in results.completed:
            self._rehearsal.end(item)
            self._causes.pop(item, None)
            read = self._reads.pop(item, None)
            if read is not None:
                self._completed[item] = read.began_ns
            self._ended(read, ok=True)
        for item in results.tombstoned:
            text = "NIXL reports that the read has failed"
            self._failed(item, (c.FAILURE_MODE_TRANSFER, other, "", text))
        for item in results.quarantined:
            error = (
                c.FAILURE_MODE_TIMEOUT,
                timeout,
                "",
                "the read has not ended in time; its memory stays in use",
            )
            if peer_is_down:
                error = (c.FAILURE_MODE_TRANSFER, reset, "", "the connection to the producer was lost")
            self._failed(item, error)
        for item in results.retryable:
            read = self._reads.get(item)
            if read is not None and read.again:
                self._rehearsal.end(item)
                self._reads.pop(item)
                continue
            if read is not None:
                self._probed(read, c.PROBE_RESULT_ERROR)
            error = (
                c.FAILURE_MODE_PROBE,
                timeout,
                "",
                "the producer did not answer in time; it is asked again",
            )
            if peer_is_down:
                error = (
                    c.FAILURE_MODE_PROBE,
                    reset,
                    "",
                    "the connection to the producer was lost; it is asked again",
                )
            self._failed(item, error)

    def _probed(self, read: Read, result: int) -> None:
        if self._observer is not None:
            now = time.time_ns()
            self._observer.probed(read.item, read.peer, result, read.asked_ns, now, read.request_id)

    def _ended(self, read: Read | None, *, ok: bool) -> None:
        if read is None or self._observer is None or not read.began_ns:
            return
        nbytes = read.nbytes if ok else 0
        now = time.time_ns()
        unseen = max(now - max(read.began_ns, self._looked_ns), 0)
        self._observer.received(
            EcTransfer(read.item, read.peer, read.began_ns, now, nbytes, ok, read.request_id, unseen)
        )

    def _failed(self, item: str, error: tuple[int, int, str, str]) -> None:
        self._rehearsal.end(item)
        read = self._reads.pop(item, None)
        if read is None:
            return
        self._ended(read, ok=False)
        mode, error_type, error_class, text = read.error or error
        self._causes[item] = Cause(mode, error_type, read.rehearsal, read.peer)
        self._causes.move_to_end(item)
        if len(self._causes) > CAPACITY:
            self._causes.popitem(last=False)
        if self._observer is not None:
            self._observer.failed(
                EcFailure(
                    item,
                    mode,
                    error_type,
                    text,
                    peer=read.peer,
                    request_id=read.request_id,
                    error_class=error_class,
                    start_ns=read.began_ns or read.asked_ns,
                    rehearsal=read.rehearsal,
                    blameless=error_type == c.ERROR_TYPE_EVICTED,
                )
            )


class RemoteCpuLoads(CpuLoads):
    """With NIXL: an ``EcPeerSource`` and an ``EcRehearsal`` besides. A request names one producer for each item."""

    def candidates(self, request: Any, feature: Any) -> tuple[str, ...]:
        """Return the producer that the request names for the item, if it would be asked now or has not answered yet.

        vLLM asks again in the call in which it notices that no answer has come, so a silent producer is always being asked.
        """
        part, item = self._part, feature.identifier
        peer = announced_peer(request, item)
        if peer is None or peer.address == UNKNOWN or item in part._tombstones:
            return ()
        read = self._reads.get(item)
        asks = read is not None and not read.began_ns and read.peer == peer and item in part._in_flight
        return (peer.address,) if asks or part._cache.get(item) is None else ()

    def keep_to(self, request: Any, feature: Any, peers: tuple[str, ...]) -> None:
        """Have the request encode the item here, where it is kept from the only producer that it names."""
        if not peers:
            withdraw(request, feature.identifier)
            self.end_wait(request, feature.identifier)

    def connected(self) -> frozenset[str]:
        """Return the producers whose memory NIXL knows; from any thread."""
        sessions = self._part._sessions.copy().items()
        return frozenset(address(*peer) for peer, session in sessions if session._nixl_agent_name is not None)

    def rehearse(self, hit: Callable[[int, str], Drill | None]) -> None:
        """Ask *hit* once for each attempt."""
        self._rehearsal.hit = hit

    def rehearsed(self, item: str) -> bool:
        """Return whether a drill makes *item* late."""
        return self._rehearsal.made_late(item)
