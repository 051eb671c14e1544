"""Attributes that several spans share."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

from penstock.agent.errors import without_advice
from penstock.agent.traces.spans import semconv
from penstock.agent.traces.spans.model import EventEntry, SpanLink
from penstock.proto.names import NANOS, label
from penstock.proto.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.agent.traces.spans.ids import RequestIdentity
    from penstock.agent.traces.spans.model import AttributeValue, Entry
    from penstock.agent.traces.spans.request_history import Cause
    from penstock.proto.v1.common_pb2 import Peer
    from penstock.proto.v1.events_pb2 import LoadOutcome

# Name of a load's span, by its channel.
LOAD_SPAN_NAMES: dict[int, str] = {
    common_pb2.CHANNEL_KV: semconv.KV_LOAD,
    common_pb2.CHANNEL_EC: semconv.EC_LOAD,
    common_pb2.CHANNEL_EPLB: semconv.EPLB_REBALANCE,
}

OTHER_ERROR = "_OTHER"


def seconds(nano: int) -> float:
    """Convert nanoseconds to seconds."""
    return nano / NANOS


def present(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Drop unknown values: None, empty text and empty lists; 0 and False stay."""
    return {key: value for key, value in attributes.items() if value is not None and value not in ("", ())}


def span_attributes(
    attributes: Mapping[str, AttributeValue | None], error: str | None = None
) -> dict[str, AttributeValue]:
    """Drop unknown values, and add ``error.type`` to a span that ends in an *error*, and to no other.

    It is the word of the cause, which is that of the metrics; OpenTelemetry's ``_OTHER`` where none is known.
    """
    known = present(attributes)
    if error is not None:
        known[semconv.ERROR_TYPE] = known.get(semconv.CAUSE_ERROR_TYPE, OTHER_ERROR)
    return known


def enum_word(enum: object, number: int) -> str:
    """Return the word of an enum value; empty for the zero value."""
    return label(enum, number) if number else ""


def split_address(address: str) -> tuple[str, int | None]:
    """Split ``host:port``; an address that is not one (``unknown``, ``rank:3``) has no port."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or host == "rank":
        return address, None
    return host.removeprefix("[").removesuffix("]"), int(port)


def peer_attributes(peer: Peer) -> dict[str, AttributeValue]:
    """Return the peer as the metrics name it, with its engine id."""
    return present({semconv.PEER: peer.address, semconv.PEER_ENGINE_ID: peer.engine_id})


def server_attributes(peer: Peer) -> dict[str, AttributeValue]:
    """Return the peer, and its address as OpenTelemetry's CLIENT spans have it."""
    host, port = split_address(peer.address)
    known = port is not None
    return {
        **peer_attributes(peer),
        **present({semconv.SERVER_ADDRESS: host if known else None, semconv.SERVER_PORT: port}),
    }


def connection_attributes(peer: Peer) -> dict[str, AttributeValue]:
    """Return the peer as :func:`server_attributes`, and the TCP connection to it."""
    host, port = split_address(peer.address)
    found = server_attributes(peer)
    if port is not None:
        found[semconv.NETWORK_TRANSPORT] = "tcp"
        if _is_ip(host):
            found |= {semconv.NETWORK_PEER_ADDRESS: host, semconv.NETWORK_PEER_PORT: port}
    return found


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def cause_attributes(cause: Cause | None) -> dict[str, AttributeValue]:
    """Return mode and error type of what went wrong, by the words of the metrics."""
    if cause is None:
        return {}
    return present(
        {
            semconv.MODE: enum_word(common_pb2.FailureMode, cause.mode),
            semconv.CAUSE_ERROR_TYPE: enum_word(common_pb2.ErrorType, cause.error_type),
        }
    )


def outcome_attributes(outcome: LoadOutcome | None) -> dict[str, AttributeValue]:
    """Return what was done, who decided it and why."""
    if outcome is None:
        return {}
    return present(
        {
            semconv.OUTCOME: enum_word(common_pb2.Outcome, outcome.outcome),
            semconv.DECIDED_BY: enum_word(common_pb2.DecidedBy, outcome.decided_by),
            semconv.POLICY_HASH: outcome.policy_hash,
            semconv.REASON: outcome.reason,
            semconv.OBSERVED_OUTCOME: enum_word(common_pb2.Outcome, outcome.observed_outcome),
            semconv.OBSERVED_REASON: outcome.observed_reason,
        }
    )


def error_message(mode: int, error_type: int, text: str) -> str:
    """Return a status message: ``handshake timeout: no answer from 10.0.0.7:5600``."""
    text = without_advice(text)
    what = " ".join(
        filter(None, (enum_word(common_pb2.FailureMode, mode), enum_word(common_pb2.ErrorType, error_type)))
    )
    return f"{what}: {text}" if text and what else text or what or "error"


def rehearsal(entries: Iterable[Entry]) -> bool | None:
    """Return True if a drill caused one of them, else None: the attribute is left out."""
    return any(isinstance(entry, EventEntry) and entry.event.rehearsal for entry in entries) or None


def seconds_between(start: int, end: int) -> float | None:
    """Return the seconds from *start* to *end*; None if one of them is not known."""
    return seconds(end - start) if start and end >= start else None


def moment_within(moment: int, begin: int, end: int) -> int:
    """Return *moment* if it is from *begin* to *end*; else 0, which is not known."""
    return moment if begin <= moment <= end else 0


def prefill_link(identity: RequestIdentity) -> tuple[SpanLink, ...]:
    """Return the link of the decode side to prefill's request; nothing on the prefill side."""
    prefill = identity.prefill_span
    return () if prefill is None else (SpanLink(*prefill, semconv.REQUEST),)


def failure_span_name(channel: int, mode: int) -> str:
    """Return the name of the span of a failure that is not part of a load."""
    if channel == common_pb2.CHANNEL_EC and mode == common_pb2.FAILURE_MODE_PROBE:
        return semconv.EC_PROBE
    return LOAD_SPAN_NAMES.get(channel, semconv.KV_LOAD)
