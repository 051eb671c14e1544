"""What the wait of one request was made of, and its time to first token; how long blocks were kept for their reader, beside the usual."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.batch import gate_times, is_clean_up
from penstock.agent.journal import STEP_SECONDS, ReadBudget
from penstock.agent.traces.query.search import remote_request_id
from penstock.agent.traces.query.words import counted, duration, peer
from penstock.agent.traces.spans import attributes, covered_time, request_loads
from penstock.proto.names import NANOS
from penstock.proto.v1 import common_pb2
from penstock.proto.v1.common_pb2 import CHANNEL_KV, DEFERRAL_ENDING_READY
from penstock.proto.v1.events_pb2 import LEASE_ENDING_EXPIRED, LEASE_ENDING_READ, LeaseEnding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey
    from penstock.agent.traces.query.search import RequestTrace
    from penstock.agent.traces.spans import RequestFacts
    from penstock.proto.v1.events_pb2 import Event

    Interval = tuple[int, int]

QUEUE, HANDSHAKE, TRANSFER, OTHER = "handshake_queue", "handshake", "transfer", "other"
# A smaller share of the whole is not named.
_LEAST_SHARE = 0.01


class WaitPart(NamedTuple):
    """A part of the time that a request was deferred, nanoseconds."""

    name: str
    nano: int


def wait_parts(facts: RequestFacts) -> list[WaitPart]:
    """Return the parts of a request's deferrals, none of them 0; together they are its whole wait.

    Where two overlap, the later step counts: the transfer before the handshake, the handshake before its queue.
    """
    waits = _merged(deferral.interval(facts.end_unix_nano) for deferral in facts.deferrals)
    waits = [(max(start, facts.start_unix_nano), min(end, facts.end_unix_nano)) for start, end in waits]
    steps: list[tuple[str, list[Interval]]] = [
        (TRANSFER, _transfers(facts)),
        (HANDSHAKE, _handshakes(facts, queued=False)),
        (QUEUE, _handshakes(facts, queued=True)),
        (OTHER, waits),
    ]
    found: list[WaitPart] = []
    told: list[Interval] = []
    covered = 0
    for name, spans in steps:
        told += spans
        both = sum(covered_time(told, start, end) for start, end in waits)
        found.append(WaitPart(name, both - covered))
        covered = both
    order = (QUEUE, HANDSHAKE, TRANSFER, OTHER)
    return sorted((part for part in found if part.nano > 0), key=lambda part: order.index(part.name))


def _transfers(facts: RequestFacts) -> list[Interval]:
    received = [
        (entry.sample.start_time_unix_nano, entry.sample.end_time_unix_nano)
        for entry in facts.samples
        if entry.sample.direction != common_pb2.DIRECTION_SEND
    ]
    if received:
        return received
    # Without a sample, the deferral knows when its transfer began.
    return [
        (body.transfer_start_time_unix_nano, entry.event.time_unix_nano)
        for entry in facts.deferral_ends
        if (body := entry.event.deferral_end).transfer_start_time_unix_nano
    ]


def _handshakes(facts: RequestFacts, *, queued: bool) -> list[Interval]:
    bodies = [entry.event.handshake for entry in facts.handshakes]
    if queued:
        return [
            (body.queued_time_unix_nano, body.start_time_unix_nano or body.end_time_unix_nano)
            for body in bodies
            if body.queued_time_unix_nano
        ]
    return [
        (body.start_time_unix_nano, body.end_time_unix_nano) for body in bodies if body.start_time_unix_nano
    ]


def _merged(spans: Iterable[Interval]) -> list[Interval]:
    """Return the union of *spans*, as intervals that do not overlap."""
    found: list[Interval] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def waited_words(facts: RequestFacts) -> str:
    """Return for how long a request was deferred, for what, and what that was made of."""
    reasons = {wait.reason for wait in facts.deferrals}
    what = ", ".join(
        sorted(attributes.enum_word(common_pb2.DeferralReason, reason) or "something" for reason in reasons)
    )
    split = split_words(facts)
    return (
        f"was deferred for {duration(facts.deferred_nano)} ({what}, {peer(facts.peer)})"
        f"{f': {split}' if split else ''}"
    )


def split_words(facts: RequestFacts) -> str:
    """Return the parts of the wait, the largest with its share; empty if none is known."""
    parts = wait_parts(facts)
    if all(part.name == OTHER for part in parts):
        return ""
    whole, largest = sum(part.nano for part in parts), max(parts, key=lambda part: part.nano)
    return ", ".join(
        f"{part.name.replace('_', ' ')} {duration(part.nano)}"
        f"{f' ({part.nano / whole:.0%})' if part is largest and len(parts) > 1 else ''}"
        for part in parts
    )


def first_token_words(facts: RequestFacts) -> str:
    """Return where the time to the first token went, the longest gate first; empty if that is not known."""
    times = gate_times(facts.closing) if facts.closing is not None else None
    if times is None or not times.total_nano:
        return ""
    whole = times.total_nano
    named = [(gate, nano) for gate, nano in times.largest_first() if nano >= _LEAST_SHARE * whole]
    gates = ", ".join(
        f"{gate.replace('_', ' ')} {duration(nano)}"
        f"{f' ({nano / whole:.0%})' if not place and len(named) > 1 else ''}"
        for place, (gate, nano) in enumerate(named)
    )
    what = "gave its first token after" if times.first_token else "ended without a token after"
    return f"{what} {duration(whole)}: {gates}"


LONG_NANO = NANOS
"""A lease that is shorter is never unusual."""

UNUSUAL_TIMES = 3
"""A longer one is unusual from this many times the median on."""

LEAST_LEASES = 5
"""With fewer other leases to compare with, any long one is unusual."""

_MAX_LEASES = 200
_BYTES = 8 << 20


class UsualLease(NamedTuple):
    """The newest leases of an engine that were read: how many, and the median of their durations, nanoseconds."""

    number: int
    median_nano: int


def held_nano(lease: Event) -> int:
    """Return how long a lease was held; 0 if that is not known."""
    start = lease.lease_closed.start_time_unix_nano
    return max(0, lease.time_unix_nano - start) if start else 0


def usual_lease(reader: Reader, key: EngineKey, without: str) -> UsualLease:
    """Return what is usual among the newest leases of engine *key*, without those of the request *without*."""
    durations = []
    rows = reader.scan(kinds=("lease_closed",), limit=_MAX_LEASES, allowance=ReadBudget(_BYTES, STEP_SECONDS))
    for logged, index in rows:
        event = reader.parse(logged).events[index]
        source = reader.source(logged.epoch)
        if (
            source is not None
            and source.key == key
            and event.request_id != without
            and event.lease_closed.ending == LEASE_ENDING_READ
            and held_nano(event)
        ):
            durations.append(held_nano(event))
    return UsualLease(len(durations), int(statistics.median(durations)) if durations else 0)


def is_unusual(held: int, usual: UsualLease) -> bool:
    """Return whether a lease that was held for *held* nanoseconds is longer than usual."""
    return held >= LONG_NANO and (usual.number < LEAST_LEASES or held > UNUSUAL_TIMES * usual.median_nano)


def unusual_lease(reader: Reader, request: RequestTrace) -> UsualLease | None:
    """Return what is usual for the request's engine if the request held a lease for longer; else None."""
    longest = max((held_nano(entry.event) for entry in request.facts.leases), default=0)
    if longest < LONG_NANO:
        return None
    usual = usual_lease(reader, request.source.key, request.key.request_id)
    return usual if is_unusual(longest, usual) else None


def readers_of(request: RequestTrace, requests: Iterable[RequestTrace]) -> list[RequestFacts]:
    """Return those of *requests* that name *request* as the one whose blocks they load."""
    return [other.facts for other in requests if request.key.request_id in _remotes(other.facts)]


def _remotes(facts: RequestFacts) -> set[str]:
    closing = (facts.closed,) if facts.closed is not None else ()
    return {remote_request_id(entry) for entry in (*closing, *facts.deferral_starts, *facts.failures)}


def lease_clauses(
    facts: RequestFacts, usual: UsualLease | None, readers: Sequence[RequestFacts] = ()
) -> Iterator[str]:
    """Yield a clause for each lease that expired, that no reader could use, or that was longer than *usual*."""
    for entry in facts.leases:
        lease = entry.event.lease_closed
        if lease.ending == LEASE_ENDING_EXPIRED:
            held = held_words(entry.event)
            yield f"kept {counted(lease.blocks, 'block')} for a reader that did not come in {held}"
            continue
        unusual = usual is not None and is_unusual(held_nano(entry.event), usual)
        in_vain = lease.ending == LEASE_ENDING_READ and _is_unread(facts, readers)
        if unusual or (in_vain and any(map(_came_to_nothing, readers))):
            clause = f"kept {counted(lease.blocks, 'block')} for its reader, {released_words(facts, entry.event, readers)}"
            yield f"{clause}: {_compared(usual)}" if usual is not None and unusual else clause


def released_words(facts: RequestFacts, lease: Event, readers: Sequence[RequestFacts]) -> str:
    """Return how a lease of *facts* ended and after how long, as far as its *readers* say it.

    The engine that kept the blocks gets one message for a read, for a reader that needs none of them and for a clean-up;
    only the readers' engine knows which it was.
    """
    closed, after = lease.lease_closed, f"after {held_words(lease)}"
    if closed.ending != LEASE_ENDING_READ:
        return f"{attributes.enum_word(LeaseEnding, closed.ending) or 'let go'} {after}"
    if _has_sent(facts) or any(map(_has_read, readers)):
        return f"read {after}"
    if not _is_unread(facts, readers):
        either = "released (by a read or by a clean-up)" if "Nixl" in closed.connector else "released"
        return f"{either} {after}"
    if any(each.closing is not None and is_clean_up(each.closing) for each in readers):
        return f"released unread {after} by vLLM's clean-up request"
    needed = "" if any(map(_came_to_nothing, readers)) else ", because its reader needed none of them"
    return f"released unread {after}{needed}"


def _has_sent(facts: RequestFacts) -> bool:
    """Return whether the engine that kept the blocks wrote them to the reader."""
    return any(load.sending and not load.failed for load in request_loads(facts))


def _has_read(reader: RequestFacts) -> bool:
    ends = (entry.event.deferral_end for entry in reader.deferral_ends)
    return (
        any(load.channel == CHANNEL_KV and not load.failed for load in request_loads(reader))
        or any(each.channel == CHANNEL_KV and each.ending == DEFERRAL_ENDING_READY for each in ends)
        or (reader.closing is not None and bool(reader.closing.external_cached_tokens))
    )


def _is_unread(facts: RequestFacts, readers: Sequence[RequestFacts]) -> bool:
    """Return whether it is known that no reader loaded the blocks: all of them have ended."""
    ended = bool(readers) and all(each.closing is not None for each in readers)
    return ended and not _has_sent(facts) and not any(map(_has_read, readers))


def _came_to_nothing(reader: RequestFacts) -> bool:
    """Return whether a reader failed to load, or was aborted before its first step."""
    return bool(reader.failures) or reader.closing is None or not reader.closing.scheduled_time_unix_nano


def _compared(usual: UsualLease) -> str:
    if usual.number < LEAST_LEASES:
        return "unusually long; its engine has too few other leases to compare with"
    return f"unusually long, the median of this engine's newest {usual.number:,} leases is {duration(usual.median_nano)}"


def held_words(lease: Event) -> str:
    """Return how long a lease was held."""
    start = lease.lease_closed.start_time_unix_nano
    return duration(lease.time_unix_nano - start) if start else "an unknown time"
