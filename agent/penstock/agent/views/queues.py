"""What the schedulers of engines have: rows of requests that wait or run, cells and lines of an engine, and sentences. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.views import text
from penstock.agent.views.tables import Table
from penstock.proto.v1 import snapshot_pb2 as snapshots
from penstock.proto.v1.snapshot_pb2 import QueueReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.snapshot_pb2 import QueuedRequest, WaitingRequests

# Engines that a sentence names.
_NAMED = 3


def queued_rows(items: Iterable[admin.RequestSummary], now: float) -> Table:
    """Return the table of requests that wait or run in a scheduler; a request without a row there is left out."""
    return Table(
        ("AGE", "ENGINE", "REQUEST", "STATE", "PEER", "BLOCKS", "PROMPT", "COMPUTED"),
        [
            (
                text.ago_of(item.since, now).removesuffix(" ago"),
                text.engine(item.key),
                item.request_id,
                queued_state(item.queued),
                item.queued.peer.address or text.NONE,
                str(item.queued.blocks),
                str(item.queued.prompt_tokens),
                str(item.queued.computed_tokens),
            )
            for item in items
            if item.HasField("queued")
        ],
    )


def queued_state(queued: QueuedRequest) -> str:
    """Return what a request waits for, or that it runs."""
    if not queued.waiting:
        return "runs"
    return text.style(f"waits for {text.word(QueueReason, queued.waiting)}", "yellow")


def waiting_words(rows: Iterable[WaitingRequests]) -> str:
    """Return what requests wait for in a scheduler: ``2 capacity, 1 grammar``; empty for none."""
    return ", ".join(
        f"{row.count} {text.word(QueueReason, row.reason).replace('_', ' ')}" for row in rows if row.count
    )


def nothing_deferred(response: admin.ListRequestsResponse) -> str:
    """Return that no request is deferred, and what waits in the schedulers all the same."""
    waiting = sum(row.count for row in response.waiting)
    said = ["no request is deferred"]
    if waiting:
        waits = "waits" if waiting == 1 else "wait"
        said.append(f"{waiting} {waits} for the scheduler ({waiting_words(response.waiting)})")
    if response.unknown_queues:
        said.append(unknown_queues_words(response))
    return "; ".join(said)


def unknown_queues_words(response: admin.ListRequestsResponse) -> str:
    """Return of which engines it is not known what their schedulers have."""
    keys = [text.engine(key) for key in response.unknown_queues]
    names = ", ".join(keys[:_NAMED]) + (f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else "")
    one = len(keys) == 1
    reports = "engine {} does not report its queue" if one else "engines {} do not report their queues"
    return f"{reports.format(names)}: what waits there is not known"


def queue_cell(item: admin.Engine) -> str:
    """Return what waits in the scheduler: ``2 capacity``; ``0`` for nothing, ``-`` for not known."""
    return (waiting_words(item.queue.waiting) or "0") if item.HasField("queue") else text.NONE


def free_cell(item: admin.Engine) -> str:
    """Return how many KV blocks are free; ``-`` for not known."""
    queue = item.queue
    return f"{queue.free_blocks} of {queue.total_blocks}" if queue.total_blocks else text.NONE


def scheduler_lines(item: admin.Engine, now: float) -> Iterator[str]:
    """Yield what the scheduler has; of an engine that does not tell, that this is not known."""
    if not item.HasField("queue"):
        if item.connected and item.HasField("facts"):
            yield "not reported: what runs or waits in it is not known"
        return
    queue = item.queue
    if queue.pause:
        since = text.ago(queue.pause_start_time_unix_nano, now)
        whom = "all requests" if queue.pause == snapshots.SCHEDULER_PAUSE_ALL else "new requests"
        yield text.style(f"paused for {whom} by vLLM since {since}", "yellow")
    yield f"{text.count(queue.running, 'request')} running"
    for row in queue.waiting:
        if row.count:
            reason = text.word(QueueReason, row.reason).replace("_", " ")
            yield f"{row.count} waiting for {reason}, oldest since {text.ago(row.oldest_start_time_unix_nano, now)}"
    if queue.total_blocks:
        used = 1 - min(queue.free_blocks, queue.total_blocks) / queue.total_blocks
        yield f"{queue.free_blocks} of {queue.total_blocks} KV blocks free, {used:.1%} of the cache in use"
    if queue.last_step_time_unix_nano:
        empty = f", {text.count(queue.empty_steps, 'step')} without one since" if queue.empty_steps else ""
        yield (
            f"last step with a token {text.ago(queue.last_step_time_unix_nano, now)}: "
            f"{text.count(queue.last_step_tokens, 'token')}{empty}"
        )
    else:
        yield "no step with a token yet"
