"""Ids of traces and spans."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.traces.spans import ids
from penstock.agent.traces.spans.ids import RequestIdentity, TraceContext, parse_traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", TraceContext(TRACE, SPAN, sampled=True)),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, sampled=False)),
        (f"00-{TRACE}-{SPAN}-03", TraceContext(TRACE, SPAN, sampled=True)),
        # A later version may have more fields.
        (f"01-{TRACE}-{SPAN}-01-more", TraceContext(TRACE, SPAN, sampled=True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00-{TRACE}-{SPAN}-01\n", None),
        ("", None),
    ],
)
def test_traceparent(text, expected):
    """A trace context is taken as W3C defines it, or not at all."""
    assert parse_traceparent(text) == expected


@given(st.text())
def test_traceparent_takes_any_text(text):
    """No text makes the parser raise."""
    context = parse_traceparent(text)
    assert context is None or int(context.trace_id, 16)


@pytest.mark.parametrize(
    ("internal", "external"),
    [
        ("cmpl-chat-0-1234abcd", "cmpl-chat-0"),
        ("chatcmpl-x-1234abcd", "chatcmpl-x"),
        # n > 1: the child's index comes first.
        ("3_cmpl-chat-0-1234abcd", "cmpl-chat-0"),
        # VLLM_DISABLE_REQUEST_ID_RANDOMIZATION.
        ("my-own-id", "my-own-id"),
        ("1234abcd", "1234abcd"),
    ],
)
def test_external_id(internal, external):
    """gen_ai.request.id is the id before vLLM made it unique."""
    assert ids.external_id(internal) == external


def test_both_sides_share_a_trace_without_a_header():
    """The trace id is the hash of the prefill side's internal id, on both sides."""
    prefill = RequestIdentity("p-1")
    decode = RequestIdentity("d-1", prefill_request_id="p-1")
    assert prefill.trace_id == decode.trace_id == hashlib.sha256(b"p-1").digest()[:16].hex()
    assert decode.prefill_span == (prefill.trace_id, prefill.span_id)
    assert prefill.prefill_span is None


def test_both_sides_share_the_callers_trace():
    """With a header the trace is the caller's, and decode's link leads there too."""
    caller = TraceContext(TRACE, SPAN, sampled=True)
    prefill = RequestIdentity("p-1", caller=caller)
    decode = RequestIdentity("d-1", prefill_request_id="p-1", caller=caller)
    assert prefill.trace_id == decode.trace_id == TRACE
    assert decode.prefill_span == (TRACE, prefill.span_id)
    assert decode.parent_span_id == SPAN


def test_a_caller_that_does_not_export_is_no_parent():
    """A parent whose caller does not sample is not exported, so it is left out."""
    assert RequestIdentity("p-1", caller=TraceContext(TRACE, SPAN, sampled=False)).parent_span_id == ""


def test_the_same_id_on_both_sides_gives_two_spans():
    """Where vLLM does not randomize ids, prefill and decode can have the same one."""
    assert RequestIdentity("same").span_id != RequestIdentity("same", prefill_request_id="same").span_id


def test_ids_do_not_change():
    """Ids are stored in trace backends, so they are the same in every version."""
    assert ids.trace_id("p-1") == "1dee6e3ec67dc8033b3363d93f46f1af"
    assert RequestIdentity("p-1").span_id == "1f30e0f0c55a7e5d"
    assert RequestIdentity("d-1", prefill_request_id="p-1").span_id == "b45bb3f15a4a8db1"
    assert ids.handshake_ids(1) == ("87632c9b2f7b807c9e6d5c14bbab7761", "87632c9b2f7b807c")
