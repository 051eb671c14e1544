"""How long blocks were kept for their reader, and whether that is unusual for their engine."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.journal import STEP_SECONDS, ReadBudget
from penstock.agent.traces.query.words import duration
from penstock.agent.traces.spans import attributes
from penstock.proto.names import NANOS
from penstock.proto.v1.events_pb2 import LEASE_ENDING_EXPIRED, LEASE_ENDING_READ, LeaseEnding

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def lease_clauses(facts: RequestFacts, usual: UsualLease | None) -> Iterator[str]:
    """Yield a clause for each lease that expired, or that was longer than *usual*."""
    for entry in facts.leases:
        lease = entry.event.lease_closed
        if lease.ending == LEASE_ENDING_EXPIRED:
            held = held_words(entry.event)
            yield f"kept {lease.blocks} blocks for a reader that did not come in {held}"
        elif usual is not None and is_unusual(held_nano(entry.event), usual):
            ending = attributes.enum_word(LeaseEnding, lease.ending) or "let go"
            yield f"kept {lease.blocks} blocks for its reader, {ending} after {held_words(entry.event)}: {_compared(usual)}"


def _compared(usual: UsualLease) -> str:
    if usual.number < LEAST_LEASES:
        return "unusually long; its engine has too few other leases to compare with"
    return f"unusually long, the median of this engine's newest {usual.number:,} leases is {duration(usual.median_nano)}"


def held_words(lease: Event) -> str:
    """Return how long a lease was held."""
    start = lease.lease_closed.start_time_unix_nano
    return duration(lease.time_unix_nano - start) if start else "an unknown time"
