"""What the wait of one request was made of: the queue of handshakes, its handshake, its transfer; and its time to first token. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.batch import gate_times
from penstock.agent.traces.query.words import duration, peer
from penstock.agent.traces.spans import attributes, covered_time
from penstock.proto.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.traces.spans import RequestFacts

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
