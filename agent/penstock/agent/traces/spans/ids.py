"""Ids of traces and spans: functions of what they name, so that a resend or a replay cannot double them.

The trace of a request is its caller's, if the caller sent a trace context; else it is a hash of the
prefill side's internal request id, which prefill knows as its own and decode as ``remote_request_id``.
So both servers land in one trace without a header, and decode can link to prefill's request span
without seeing it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from penstock.agent.traces.spans.semconv import HANDSHAKE, REQUEST

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01

# vLLM's internal id is "<external id>-<8 hex>"; with n > 1, "<index>_<that>"
# (v1/engine/input_processor.py and parallel_sampling.py).
_INTERNAL_ID = re.compile(r"(?:\d+_)?(.+)-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The caller's W3C trace context; ids in lower-case hex."""

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(text: str) -> TraceContext | None:
    """Parse a ``traceparent``; None if it is absent or breaks the W3C recommendation (level 1)."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    version, trace_id, parent, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(parent, 16):
        return None
    return TraceContext(trace_id, parent, bool(int(flags, 16) & _SAMPLED))


def trace_id(key: str) -> str:
    """Return the trace id that belongs to *key*: 32 hex digits."""
    return hashlib.sha256(key.encode()).digest()[:16].hex()


def span_id(*key: str | int) -> str:
    """Return the span id that belongs to *key*: 16 hex digits."""
    return hashlib.sha256("\0".join(map(str, key)).encode()).digest()[:8].hex()


def handshake_ids(handshake: int) -> tuple[str, str]:
    """Return trace and span id of a handshake.

    It has a trace of its own, a function of its id alone: it belongs to several requests, and each of them
    must be able to link to it before it is seen.
    """
    return trace_id(f"{HANDSHAKE}\0{handshake}"), span_id(HANDSHAKE, handshake)


def external_id(request_id: str) -> str:
    """Return the id that vLLM's own ``llm_request`` span carries as ``gen_ai.request.id``.

    That is the internal id without the random end that vLLM adds; unchanged if there is none.
    """
    match = _INTERNAL_ID.fullmatch(request_id)
    return match[1] if match else request_id


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """What the ids of a request's spans are made of, and where the spans begin.

    Attributes:
        request_id: vLLM's internal id.
        prefill_request_id: the id that the prefill side gave it, if this is the decode side; else empty.
        caller: the caller's trace context.
        tracestate: the caller's ``tracestate``, as it came.
        apart: the first batch of a segment that does not have the request's end; 0 for the one that has it.
        began_unix_nano: when the request began: none of its spans begins earlier.

    """

    request_id: str
    prefill_request_id: str = ""
    caller: TraceContext | None = None
    tracestate: str = ""
    apart: int = 0
    began_unix_nano: int = 0

    @property
    def trace_id(self) -> str:
        """The trace of the request, the same on both sides."""
        if self.caller is not None:
            return self.caller.trace_id
        return trace_id(self.prefill_request_id or self.request_id)

    @property
    def key(self) -> tuple[str | int, ...]:
        """Identifies the request, or a segment of it that is not its end.

        Decode's has two parts, because both sides can have the same internal id:
        VLLM_DISABLE_REQUEST_ID_RANDOMIZATION keeps vLLM from randomizing it.
        """
        apart = ("apart", self.apart) if self.apart else ()
        if self.prefill_request_id:
            return (REQUEST, self.prefill_request_id, self.request_id, *apart)
        return (REQUEST, self.request_id, *apart)

    @property
    def span_id(self) -> str:
        """The id of its ``penstock.request`` span."""
        return span_id(*self.key)

    @property
    def parent_span_id(self) -> str:
        """The caller's span, if the caller exports it; else empty.

        vLLM's own ``llm_request`` is a sibling below the same caller, never the parent: whether it is
        exported is not known here.
        """
        return self.caller.span_id if self.caller is not None and self.caller.sampled else ""

    @property
    def prefill_span(self) -> tuple[str, str] | None:
        """Trace and span id of prefill's ``penstock.request``; None if this is not the decode side.

        The trace is this side's own: a router that has a trace context forwards it to both.
        """
        if not self.prefill_request_id:
            return None
        return self.trace_id, span_id(REQUEST, self.prefill_request_id)
