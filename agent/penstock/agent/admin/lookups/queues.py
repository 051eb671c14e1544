"""What the schedulers of engines have now: their requests, those that wait by what they wait for, and one request in words.

From the last snapshots, which name some of the requests and count all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.admin.lookups.messages import MAX_UINT32, clamp_unsigned, key_message, timestamp_message
from penstock.agent.stalls import StallKind
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import snapshot_pb2 as snapshots
from penstock.proto.v1.snapshot_pb2 import SchedulerQueue, WaitingRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.agent.model import EngineKey
    from penstock.agent.sources import EngineView
    from penstock.agent.stalls import Stall
    from penstock.proto.v1.snapshot_pb2 import QueuedRequest

_WAITS_FOR: Final[Mapping[int, str]] = {
    snapshots.QUEUE_REASON_NEXT_STEP: "the next step",
    snapshots.QUEUE_REASON_CAPACITY: "KV blocks",
    snapshots.QUEUE_REASON_RUNNING_LIMIT: "its turn, as many requests run as max_num_seqs allows",
    snapshots.QUEUE_REASON_PAUSED: "the end of a pause of vLLM's scheduler",
    snapshots.QUEUE_REASON_LORA_SLOTS: "a LoRA slot, as many adapters run as max_loras allows",
    snapshots.QUEUE_REASON_REMOTE_KV: "remote KV",
    snapshots.QUEUE_REASON_KV_LOOKUP: "a look-up of its connector",
    snapshots.QUEUE_REASON_ENCODER_CACHE: "an encoder's output",
    snapshots.QUEUE_REASON_GRAMMAR: "its grammar",
    snapshots.QUEUE_REASON_STREAMING_INPUT: "its client's next input",
}
# Why a scheduler runs nothing of what it has.
_STANDSTILLS: Final = frozenset(
    {
        StallKind.NO_CAPACITY,
        StallKind.SCHEDULER_PAUSED,
        StallKind.STEPS_WITHOUT_TOKENS,
        StallKind.NO_STEPS,
        StallKind.STEP_STUCK,
    }
)
# Of a client's own id, which vLLM puts into the middle of its own: shorter ones are found in too many.
_LEAST_LETTERS: Final = 6


def queue_of(view: EngineView) -> SchedulerQueue | None:
    """Return what an engine's scheduler has; None where that is not known, as while several processes have one name."""
    found = [
        live.snapshot.queue
        for live in view.sources
        if live.connected and live.snapshot is not None and live.snapshot.HasField("queue")
    ]
    return found[0] if len(found) == 1 else None


def without_requests(queue: SchedulerQueue) -> SchedulerQueue:
    """Return a copy of *queue* that names no request."""
    copy = SchedulerQueue()
    copy.CopyFrom(queue)
    del copy.requests[:]
    return copy


class QueuedRequests(NamedTuple):
    """The requests in the schedulers of some engines.

    Attributes:
        queues: by engine, where they are known.
        unknown: connected engines of which it is not.

    """

    queues: Mapping[EngineKey, SchedulerQueue]
    unknown: Sequence[EngineKey]

    @classmethod
    def of(cls, views: Iterable[EngineView]) -> QueuedRequests:
        """Return those of *views*; workers without an EngineCore have no scheduler."""
        found = {view.key: queue_of(view) for view in views if view.connected and view.cores}
        return cls(
            {key: queue for key, queue in found.items() if queue is not None},
            [key for key, queue in found.items() if queue is None],
        )

    def count_into(self, response: admin.ListRequestsResponse) -> None:
        """Set the counts of *response*: of all engines, whatever it lists."""
        waiting: dict[int, WaitingRequests] = {}
        running = unnamed = 0
        for queue in self.queues.values():
            running += queue.running
            every = queue.running + sum(row.count for row in queue.waiting)
            unnamed += max(0, every - len(queue.requests))
            for row in queue.waiting:
                add_waiting(waiting, row)
        response.waiting.extend(waiting[reason] for reason in sorted(waiting))
        response.running = clamp_unsigned(running, MAX_UINT32)
        response.unnamed_queued = clamp_unsigned(unnamed, MAX_UINT32)
        response.unknown_queues.extend(map(key_message, self.unknown))

    def summaries(self, peer: str, since_unix_nano: int, now: int) -> Iterator[admin.RequestSummary]:
        """Yield the named requests; *peer*: only those that load from it, empty for all."""
        for key, queue in self.queues.items():
            for each in queue.requests:
                if peer in {"", each.peer.address} and each.arrival_time_unix_nano >= since_unix_nano:
                    summary = admin.RequestSummary(
                        key=key_message(key),
                        request_id=each.request_id,
                        peer=each.peer if each.HasField("peer") else None,
                        since=timestamp_message(each.arrival_time_unix_nano),
                        queued=each,
                    )
                    if 0 < each.arrival_time_unix_nano < now:
                        summary.duration.FromNanoseconds(now - each.arrival_time_unix_nano)
                    yield summary

    def by_id(self) -> Mapping[tuple[str, str], QueuedRequest]:
        """Return the named requests by server and id."""
        return {
            (key.server, each.request_id): each
            for key, queue in self.queues.items()
            for each in queue.requests
            if each.request_id
        }

    def named(self, text: str) -> Sequence[tuple[EngineKey, QueuedRequest]]:
        """Return those that *text* stands for: an id, else the begin of one, else the client's own in it."""
        every = [(key, each) for key, queue in self.queues.items() for each in queue.requests]
        if not text:
            return ()
        for fits in (
            lambda name: name == text,
            lambda name: name.startswith(text),
            lambda name: len(text) >= _LEAST_LETTERS and f"-{text}-" in name,
        ):
            found = [(key, each) for key, each in every if fits(each.request_id)]
            if found:
                return found
        return ()


def add_waiting(found: dict[int, WaitingRequests], row: WaitingRequests) -> None:
    """Add *row* to the requests that wait for the same."""
    merged = found.setdefault(row.reason, WaitingRequests(reason=row.reason))
    merged.count = min(merged.count + row.count, MAX_UINT32)
    starts = {merged.oldest_start_time_unix_nano, row.oldest_start_time_unix_nano} - {0}
    merged.oldest_start_time_unix_nano = min(starts, default=0)


def queued_clauses(
    queues: QueuedRequests, stalls: Mapping[EngineKey, Sequence[Stall]], now: int
) -> Callable[[str, str], str]:
    """Return a look-up, by server and id, of what a request does now as the rest of a sentence; empty for one not named."""
    places = {
        (key.server, each.request_id): (key, queue, each)
        for key, queue in queues.queues.items()
        for each in queue.requests
    }

    def clause(server: str, request_id: str) -> str:
        place = places.get((server, request_id))
        if place is None:
            return ""
        key, queue, each = place
        return queued_clause(each, queue, stalls.get(key, ()), now)

    return clause


def queued_clause(each: QueuedRequest, queue: SchedulerQueue, stalls: Sequence[Stall], now: int) -> str:
    """Return what a request does now, as the rest of a sentence about it."""
    came = each.arrival_time_unix_nano
    age = f"it arrived {(now - came) / NANOS:.0f} s ago" if 0 < came <= now else ""
    size = (
        f"{each.computed_tokens} tokens computed, the prompt has {each.prompt_tokens}"
        if each.prompt_tokens
        else ""
    )
    blocks = f"{each.blocks} KV blocks" if each.blocks != 1 else "1 KV block"
    why = "; ".join(stall.sentence for stall in stalls if stall.kind in _STANDSTILLS and not stall.until)
    if each.waiting:
        what = _WAITS_FOR.get(each.waiting, "something that Penstock does not know")
        peer = f" from {each.peer.address}" if each.peer.address and each.waiting in _OF_PEERS else ""
        state = f"waits for {what}{peer} now"
        if not why and each.waiting == snapshots.QUEUE_REASON_CAPACITY:
            run = "1 request runs" if queue.running == 1 else f"{queue.running} requests run"
            why = f"{queue.free_blocks} of {queue.total_blocks} are free, {run}"
    else:
        state = "runs now"
    about = ", ".join(part for part in (age, size, blocks if each.blocks else "") if part)
    return "".join((state, f" ({about})" if about else "", f": {why}" if why else ""))


_OF_PEERS: Final = frozenset({snapshots.QUEUE_REASON_REMOTE_KV, snapshots.QUEUE_REASON_ENCODER_CACHE})
