"""The promotions of one P2P tier: blocks that another engine writes into this engine's memory, by job.

The tier has one control socket for each engine, whatever its ranks, so a promotion is one transfer, and a peer is one engine: with
data parallelism each has a port of its own. Its jobs end in ``get_finished_jobs``, on the scheduler's thread or on vLLM's own for
the tier, always under the tier manager's lock. What the scheduler has to know waits until the step's end (:meth:`Promotions.take`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.naming import Failure, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.proto.v1.snapshot_pb2 import Snapshot
    from penstock.rules import Overdue

JOBS_MAX: Final = 8_192
"""Promotions in flight, and requests with a source, that are kept; the oldest is forgotten beyond that."""

ENDED_MAX: Final = 1_024
"""Ended promotions that wait for the step's end; what comes beyond that is dropped and counted."""

UNTOLD: Final = Failure(
    c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER, error_text="the source said that it failed"
)
"""A failed promotion of a live session: the source's answer has no reason."""


class Source(NamedTuple):
    """Where a request's KV may come from, by its ``kv_transfer_params``: their ``kv_request_id``, and *name*, vLLM's of the peer."""

    key: str
    peer: Peer
    name: str


@dataclass(slots=True)
class _Open:
    """A promotion that has not ended. *cause*: why it fails, where that is known before its end. *given_up*: its request ended."""

    request_id: str
    peer: Peer
    blocks: int
    start_ns: int
    cause: Failure | None = None
    given_up: bool = False


class EndedPromotion(NamedTuple):
    """What became of a promotion, or of a look-up: *failure* is None for a success; *blocks* is 0 for a look-up."""

    request_id: str
    peer: Peer
    blocks: int
    start_ns: int
    failure: Failure | None = None


class Promotions:
    """The promotions of the P2P tier of one connector.

    Attributes:
        connector: the connector's class.

    """

    def __init__(self, connector: str, block_bytes: int, seconds: float) -> None:
        """Observe a tier whose blocks have *block_bytes* and that waits *seconds* for the end of a load."""
        self.connector = connector
        self._block_bytes = block_bytes
        self._wait_ns = int(seconds * 1e9)
        self._sources: dict[str, Source] = {}
        self._open: dict[int, _Open] = {}
        self._unreached: dict[int, Source] = {}
        self._over: dict[str, None] = {}
        self._ended: list[EndedPromotion] = []
        self._looked_ns = 0

    # Requests

    def on_request(self, request_id: str, source: Source) -> None:
        """Record where the KV of a request may come from."""
        _add(self._sources, request_id, source)

    def on_request_ended(self, request_id: str) -> Source | None:
        """Forget a request, whose promotions vLLM aborts; return its source if a deadline has ended it."""
        source = self._sources.pop(request_id, None)
        if source is not None:
            self._give_up(request_id)
        return source if self._over.pop(request_id, self) is None else None

    def give_up(self, request_id: str, overdue: Overdue) -> EndedPromotion:
        """Record that a deadline ends a request that has a source; return that as its failure, and its only one."""
        _add(self._over, request_id, None)
        now = time.time_ns()
        blocks = self._give_up(request_id)
        what = "the promotion" if blocks else "the answer to the look-up"
        failure = Failure(
            c.FAILURE_MODE_TIMEOUT,
            c.ERROR_TYPE_TIMEOUT,
            error_text=f"{what} did not come within deferral.{overdue.wait} of the policy",
        )
        return EndedPromotion(
            request_id, self._sources[request_id].peer, blocks, now - overdue.waited_ns, failure
        )

    def _give_up(self, request_id: str) -> int:
        """Expect nothing more of the promotions of a request; return their blocks."""
        mine = [each for each in self._open.copy().values() if each.request_id == request_id]
        for each in mine:
            each.given_up = True
        return sum(each.blocks for each in mine)

    def source_of(self, request_id: str) -> Source | None:
        """Return the source of a request, if it has one here."""
        return self._sources.get(request_id)

    # Jobs

    def on_submitted(self, job_id: int, request_id: str, blocks: int) -> None:
        """Record that a promotion begins."""
        source = self._sources.get(request_id)
        if source is not None:
            _add(self._open, job_id, _Open(request_id, source.peer, blocks, time.time_ns()))
            _add(self._unreached, job_id, source)

    def begun(self, reached: Callable[[str], bool]) -> list[str]:
        """Return the requests with a promotion whose source is *reached* for the first time; what was asked of it before waits."""
        if not self._unreached:
            return []
        found = [job_id for job_id, source in self._unreached.items() if reached(source.name)]
        for job_id in found:
            del self._unreached[job_id]
        return [self._open[job_id].request_id for job_id in found if job_id in self._open]

    def on_not_posted(self, job_id: int, failure: Failure) -> None:
        """Record why a promotion was not even asked for; it ends at the next poll."""
        promotion = self._open.get(job_id)
        if promotion is not None:
            promotion.cause = failure

    def on_peer_lost(self, address: str, failure: Failure) -> None:
        """Record why the session with a peer ends, and with it every promotion from there."""
        for each in self._open.values():
            if each.peer.address == address and each.cause is None:
                each.cause = failure

    def on_finished(self, results: Iterable[Any]) -> None:
        """Report the promotions among the jobs that have ended: vLLM's ``JobResult``."""
        now = time.time_ns()
        for result in results:
            promotion = self._open.pop(result.job_id, None)
            self._unreached.pop(result.job_id, None)
            if promotion is None or (promotion.given_up and not result.success):
                # A job that stores, or one that ends because its request did: no failure.
                continue
            took = max(now - promotion.start_ns, 1)
            failure = None if result.success else self._why(promotion, took)
            # The look before has found it unfinished.
            unseen = min(max(now - max(promotion.start_ns, self._looked_ns), 0), took)
            self._emit_transfer(promotion, now, took, unseen, failed=failure is not None)
            self._end(promotion, failure)
        self._looked_ns = now

    def on_unanswered(self, keys: Iterable[str], failure: Failure) -> None:
        """Report the requests with these ``kv_request_id`` whose look-up can have no answer any more."""
        loading = {each.request_id for each in self._open.values()}
        asked = set(keys)
        for request_id, source in list(self._sources.items()) if asked else ():
            if source.key in asked and request_id not in loading and request_id not in self._over:
                self.on_refused(request_id, failure)

    def on_refused(self, request_id: str, failure: Failure) -> None:
        """Report a request that cannot even ask its source."""
        source = self._sources.get(request_id)
        if source is not None:
            self._end(_Open(request_id, source.peer, 0, time.time_ns()), failure)

    def take(self) -> list[EndedPromotion]:
        """Return and forget what has ended since the last call."""
        if not self._ended:
            return []
        ended, self._ended = self._ended, []
        return ended

    # Reports

    def fill(self, snapshot: Snapshot) -> None:
        """Add the promotions in flight, by peer; on the exporter's thread, reads only."""
        counts: dict[Peer, tuple[int, int]] = {}
        for each in self._open.copy().values():
            count, oldest = counts.get(each.peer, (0, each.start_ns))
            counts[each.peer] = count + 1, min(oldest, each.start_ns)
        for peer, (count, oldest) in counts.items():
            snapshot.in_flight.add(
                channel=c.CHANNEL_KV,
                connector=self.connector,
                peer=peer.fields(),
                count=count,
                oldest_start_time_unix_nano=oldest,
                component=c.COMPONENT_SCHEDULER,
            )

    def _why(self, promotion: _Open, took_ns: int) -> Failure:
        if promotion.cause is not None:
            return promotion.cause
        if took_ns >= self._wait_ns:
            text = "the source did not say in time that it has written"
            return replace(UNTOLD, error_type=c.ERROR_TYPE_TIMEOUT, error_text=text)
        return UNTOLD

    def emit(self, ended: EndedPromotion, attempt: int) -> None:
        """Emit the failure of the *attempt*-th load of a request; on the scheduler's thread."""
        if ended.failure is None or not runtime.active:
            return
        fields = ended.failure.fields() | {
            "channel": c.CHANNEL_KV,
            "connector": self.connector,
            "direction": c.DIRECTION_RECEIVE,
            "peer": ended.peer.fields(),
            "start_time_unix_nano": ended.start_ns,
            "attempt": attempt,
        }
        if ended.blocks:
            fields |= {"blocks": ended.blocks, "bytes": ended.blocks * self._block_bytes}
        runtime.emit_event(
            "transfer_failure", fields, component=c.COMPONENT_SCHEDULER, request_id=ended.request_id
        )

    def _end(self, promotion: _Open, failure: Failure | None) -> None:
        if len(self._ended) >= ENDED_MAX:
            runtime.emitter.drops.add("queue_full", "event")
            return
        ended = EndedPromotion(
            promotion.request_id, promotion.peer, promotion.blocks, promotion.start_ns, failure
        )
        self._ended.append(ended)

    def _emit_transfer(
        self, promotion: _Open, end_ns: int, took_ns: int, unseen_ns: int, *, failed: bool
    ) -> None:
        if not runtime.active:
            return
        runtime.emit_transfer(
            end_ns,
            took_ns,
            0 if failed else promotion.blocks * self._block_bytes,
            0,
            0,
            unseen_ns,
            c.CHANNEL_KV,
            c.DIRECTION_RECEIVE,
            c.TRANSFER_RESULT_ERROR if failed else c.TRANSFER_RESULT_OK,
            c.COMPONENT_SCHEDULER,
            0,
            self.connector,
            promotion.peer.address,
            promotion.peer.engine_id,
            promotion.request_id,
        )


def _add(table: dict[Any, Any], key: Any, value: Any) -> None:
    if key not in table and len(table) >= JOBS_MAX:
        del table[next(iter(table))]
    table[key] = value
