"""The demo's four steps on real engines: a transfer, a failure, a policy changed live, the failure again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from demo.common.steps import until
from demo.steps import bad_request, good_request, set_policy
from demo.story import play
from tests.docs.demo_picture import CUT, shortened, shown
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.engine.stacks import CALLER_SPAN, forget_policy, named
from tests.support.samples.comparison import normal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.common.otlp_receiver import Span
    from demo.stack import Stack
    from demo.steps import GoodRequest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


@pytest.fixture(autouse=True)
def _no_policy(stack: Stack) -> Iterator[None]:
    """Begin with vLLM's own configuration, and leave it to the next test."""
    forget_policy(stack)
    yield
    forget_policy(stack)


@pytest.fixture(scope="module")
def good(stack: Stack) -> GoodRequest:
    """Send a good request, of which several tests look at what is recorded."""
    return good_request(stack)


def test_a_good_request_is_one_transfer_and_one_trace(stack: Stack, good: GoodRequest) -> None:
    """Its bytes and its peer are in /metrics, its spans of both servers in one trace, linked."""
    assert good.same_text
    assert [sample.labels["peer"] for sample in good.transfers] == [stack.prefill.peer]
    assert good.bytes[0].value > 0
    (prefill,) = named(good.spans, "penstock.request", "vllm-prefill")
    (decode,) = named(good.spans, "penstock.request")
    (load,) = named(good.spans, "kv.load")
    assert prefill.span_id in load.links
    assert load.parent_id == decode.span_id
    assert decode.attributes["penstock.peer"] == stack.prefill.peer
    assert load.attributes["penstock.bytes"] > 0
    assert not any(span.error for span in good.spans)


def test_a_request_that_waits_is_deferred_once(good: GoodRequest) -> None:
    """One wait for remote KV is one span, and not longer than the request."""
    (decode,) = named(good.spans, "penstock.request")
    (deferral,) = named(good.spans, "penstock.deferral")
    assert deferral.attributes["penstock.ending"] == "ready"
    assert decode.start <= deferral.start <= deferral.end <= decode.end


def test_a_failure_under_fail_has_mode_peer_and_request(stack: Stack) -> None:
    """The client gets a 5xx; metrics, events and trace say which peer, why, and what was done."""
    bad = bad_request(stack)

    assert bad.answer.status >= 500
    assert bad.outcome["outcome"] == "failed"
    assert bad.outcome["decidedBy"] == "vllm"
    assert bad.outcome["peer"]["address"] == bad.peer
    labels = {sample.name: sample.labels for sample in bad.metrics}
    assert labels["penstock_transfer_failures_total"]["mode"] == "handshake"
    assert labels["penstock_load_outcomes_total"]["outcome"] == "failed"
    request = next(
        span
        for span in named(bad.spans, "penstock.request")
        if span.attributes["penstock.request_id"] == bad.request_id
    )
    assert request.error
    assert request.attributes["penstock.outcome"] == "failed"
    assert request.attributes["penstock.mode"] == "handshake"
    assert request.attributes["penstock.peer"] == bad.peer
    explained = stack.agent.ctl("explain", bad.request_id)
    assert explained.code == 0
    assert bad.peer in explained.output


def test_a_policy_changes_what_happens_without_a_restart(stack: Stack) -> None:
    """Set on the running server and acknowledged, it turns the same failure into a 200."""
    pid = stack.decode.child.pid
    changed = set_policy(stack, "recompute")

    bad = bad_request(stack)

    assert bad.answer.status == 200
    assert bad.outcome["outcome"] == "recomputed"
    assert bad.outcome["decidedBy"] == "policy"
    assert bad.outcome["policyHash"] == changed.hash
    assert int(bad.outcome["tokensRecomputed"]) == bad.answer.body["usage"]["prompt_tokens"]
    recomputed = [s for s in bad.metrics if s.name == "penstock_recomputed_tokens_total"]
    assert sum(sample.value for sample in recomputed) == int(bad.outcome["tokensRecomputed"])
    (request,) = named(bad.spans, "penstock.request")
    assert not request.error
    assert request.attributes["penstock.outcome"] == "recomputed"
    (load,) = named(bad.spans, "kv.load")
    assert load.error
    assert (stack.decode.child.pid, stack.decode.child.running) == (pid, True)


@pytest.mark.usefixtures("good")
def test_every_parent_of_a_span_is_exported(stack: Stack) -> None:
    """Every parent arrives, of all requests so far: a backend shows whole trees."""

    def orphans() -> list[Span]:
        assert stack.receiver is not None
        spans = stack.receiver.spans()
        known = {span.span_id for span in spans} | {"", CALLER_SPAN}
        return [span for span in spans if span.parent_id not in known]

    until(lambda: not orphans(), f"The parents of some spans were never exported: {orphans()}", seconds=60)


@pytest.mark.long
def test_the_picture_shows_what_the_demo_prints(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line of the README's picture is one of the demo's, but for numbers, times and ids."""
    play(stack, keep=False)

    printed = [_numberless(shortened(line)) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown() if not any(text.startswith(_numberless(line)) for text in printed)] == []


def _numberless(line: str) -> str:
    """Return *line* without what differs from run to run; of a line that is cut, its whole words."""
    if line.endswith(CUT):
        line = line.rsplit(" ", 1)[0]
    # Which span of a trace is the last one depends on what has ended by then.
    tree = line.replace("├", "└").replace("│", " ")
    return re.sub(r"\d+", "N", normal(tree))
