"""How long blocks were kept for their reader, and whether that is unusual for their engine."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.batch import is_clean_up
from penstock.agent.journal import STEP_SECONDS, ReadBudget
from penstock.agent.traces.query.search import remote_request_id
from penstock.agent.traces.query.words import counted, duration
from penstock.agent.traces.spans import attributes, request_loads
from penstock.proto.names import NANOS
from penstock.proto.v1.common_pb2 import CHANNEL_KV, DEFERRAL_ENDING_READY
from penstock.proto.v1.events_pb2 import LEASE_ENDING_EXPIRED, LEASE_ENDING_READ, LeaseEnding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey
    from penstock.agent.traces.query.search import RequestTrace
    from penstock.agent.traces.spans import RequestFacts
    from penstock.proto.v1.events_pb2 import Event

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
