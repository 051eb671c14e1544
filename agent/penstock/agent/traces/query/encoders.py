"""Sentences about the encoders from which a request did not get an output: what they do, as far as it is known. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.badness import NO_SERVERS
from penstock.agent.traces.query.words import duration
from penstock.proto.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.agent.pairs import EncoderStates
    from penstock.agent.traces.query.search import RequestTrace
    from penstock.agent.traces.spans import RequestFacts
    from penstock.proto.v1 import admin_pb2

# Failures that say why themselves.
_SELF_EXPLAINED: Final = frozenset(
    {
        common_pb2.ERROR_TYPE_INCOMPATIBLE,
        common_pb2.ERROR_TYPE_DECODE,
        common_pb2.ERROR_TYPE_CORRUPT,
        common_pb2.ERROR_TYPE_EVICTED,
    }
)
_ENCODED: Final = frozenset({"stop", "length"})


class _Asked(NamedTuple):
    """When a request first asked an encoder that did not give it an output, nanoseconds; *missed*: it said that it has none."""

    time: int
    missed: bool


def encoder_sentences(
    request: RequestTrace, requests: Sequence[RequestTrace], encoders: EncoderStates
) -> Iterator[str]:
    """Yield a sentence for each encoder that did not answer *request* or did not have what it asked for.

    Args:
        request: that asked.
        requests: all of its trace, with those of the encoders as far as they are known.
        encoders: that are known.

    """
    for address, asked in sorted(_asked(request.facts).items()):
        engine = encoders.one(address)
        own = "" if engine is None else _own_requests(request, requests, engine, asked)
        yield f"Of the encoder that {request.key.request_id} asked: {encoders.sentence(address, asked.time)}{own}."


def _asked(facts: RequestFacts) -> dict[str, _Asked]:
    found: dict[str, _Asked] = {}

    def add(address: str, time: int, *, missed: bool) -> None:
        before = found.get(address)
        if address and address not in NO_SERVERS and (before is None or time < before.time):
            found[address] = _Asked(time, missed and (before is None or before.missed))

    for entry in facts.failures:
        failure = entry.event.transfer_failure
        receives = failure.direction != common_pb2.DIRECTION_SEND
        explained = entry.event.rehearsal or failure.error_type in _SELF_EXPLAINED
        if failure.channel == common_pb2.CHANNEL_EC and receives and not explained:
            add(failure.peer.address, failure.start_time_unix_nano, missed=False)
    for probe in (each.probe for each in facts.probes):
        if probe.result == common_pb2.PROBE_RESULT_MISS:
            add(probe.peer, probe.end_time_unix_nano, missed=True)
    ended = {entry.event.deferral_end.start_time_unix_nano for entry in facts.deferral_ends}
    for entry in facts.deferral_starts:
        start = entry.event.deferral_start
        waits = facts.closing is None and entry.event.time_unix_nano not in ended
        if start.reason == common_pb2.DEFERRAL_REASON_ENCODER_CACHE and waits:
            add(start.peer.address, entry.event.time_unix_nano, missed=False)
    return found


def _own_requests(
    request: RequestTrace, requests: Sequence[RequestTrace], engine: admin_pb2.Engine, asked: _Asked
) -> str:
    """Return how far the encoder's own requests of the trace were when it was asked; empty where none was found."""
    there = [each for each in requests if each is not request and each.source.key.server == engine.key.server]
    clauses = []
    for each in there:
        name, closed = f"its request {each.key.request_id}", each.facts.closed
        if closed is None:
            lost = "was lost with its engine" if each.facts.lost_unix_nano else "has not ended"
            clauses.append(f"{name} {lost}")
        elif closed.event.time_unix_nano > asked.time:
            clauses.append(f"{name} had not ended when it was asked")
        else:
            before = duration(asked.time - closed.event.time_unix_nano)
            encoded = asked.missed and closed.event.request_closed.finish_reason in _ENCODED
            why = ": what it encoded is not kept any more, or had no room" if encoded else ""
            clauses.append(f"{name} had ended {before} before{why}")
    return "".join(f"; {each}" for each in clauses)
