"""The caller's trace context, which vLLM by itself drops, and the share of traces that is kept."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import pytest
from penstock.agent.traces.assembly import AssemblyLimits

from demo.common.client import prefill_decode
from demo.common.steps import PROMPT, until
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.engine.stacks import CALLER_SPAN
from tests.support.kv.peers import garbled, impostor

if TYPE_CHECKING:
    from demo.common.otlp_receiver import Span
    from demo.stack import Stack
    from tests.support.kv.bench import Bench, Prefilled

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


def _requests_of(stack: Stack, trace_id: str) -> list[Span]:
    assert stack.receiver is not None
    spans = stack.receiver.spans(trace_id)
    found = [span for span in spans if span.name == "penstock.request"]
    return found if {span.service for span in found} == {"vllm-prefill", "vllm-decode"} else []


class Sent(NamedTuple):
    """What clients have said of two requests: one is in a trace of the caller, the other has a name.

    They are sent together: spans are exported some seconds after the end of their request.
    """

    trace_id: str
    name: str


@pytest.fixture(scope="module")
def sent(stack: Stack) -> Sent:
    """Send both."""
    sent = Sent(secrets.token_hex(16), f"e2e-{secrets.token_hex(6)}")
    for headers in (
        {"traceparent": f"00-{sent.trace_id}-{CALLER_SPAN}-01"},
        {"X-Request-Id": sent.name},
    ):
        prompt = PROMPT + secrets.token_hex(16)
        _, answer = prefill_decode(stack.prefill.url, stack.decode.url, prompt, headers=headers)
        assert answer.status == HTTPStatus.OK
    return sent


def test_one_search_finds_both_servers_below_the_caller(stack: Stack, sent: Sent) -> None:
    """With a sampled traceparent both request spans are in its trace, children of the caller's span."""
    found = until(
        lambda: _requests_of(stack, sent.trace_id), f"Trace {sent.trace_id} does not hold both servers"
    )
    assert {span.parent_id for span in found} == {CALLER_SPAN}


def test_the_clients_request_id_is_an_attribute(stack: Stack, sent: Sent) -> None:
    """X-Request-Id is chosen by clients: it can be searched for, but two servers share no id by it."""

    def named_spans() -> list[Span]:
        assert stack.receiver is not None
        return [
            span
            for span in stack.receiver.spans()
            if span.name == "penstock.request" and sent.name in span.attributes["gen_ai.request.id"]
        ]

    until(lambda: len(named_spans()) >= 2, f"Fewer than two request spans carry {sent.name}")
    found = named_spans()
    assert sorted(span.service for span in found) == ["vllm-decode", "vllm-prefill"]
    assert len({span.trace_id for span in found}) == 1


def _soon_served(kv: Bench) -> Prefilled:
    """Send requests until one has not waited for long: those that have are exported, whatever the ratio."""
    for _ in range(20):
        request = kv.prefilled()
        assert kv.decode(request).completion == request.text
        kv.closed(request)
        ends = kv.events("deferral_end", request.name)
        waited = sum(end.time_unix_nano - end.deferral_end.start_time_unix_nano for end in ends)
        if waited < AssemblyLimits().long_deferral_nano / 2:
            return request
    raise AssertionError("Each of 20 requests waits for long")


def test_the_share_of_traces_changes_live(kv: Bench) -> None:
    """With a ratio of 0 decode's good requests are not exported any more; those that were recomputed still are."""
    kv.enforce(telemetry={"traceSampleRatio": 0}, kvLoadFailure={"action": "recompute"})
    with impostor(kv.stack.prefill, garbled) as other:
        good, bad = _soon_served(kv), kv.misled(port=other.port)
        assert kv.decode(bad).completion == bad.text

    def exported() -> str:
        assert kv.stack.receiver is not None
        spans = [span for span in kv.stack.receiver.spans() if span.service == "vllm-decode"]
        return " ".join(str(span.attributes.get("penstock.request_id")) for span in spans)

    # Spans are exported in the order in which their requests ended.
    until(lambda: bad.name in exported(), "The recomputed request is not exported")
    assert good.name not in exported()
