"""The demo in words: what is done, the commands, and what they really said."""

from __future__ import annotations

import signal
from http import HTTPStatus
from typing import TYPE_CHECKING

from demo.common.console import command, exported, output, samples, say, title, words
from demo.steps import StepError, bad_request, good_request, set_policy

if TYPE_CHECKING:
    from demo.stack import Stack
    from demo.steps import Bad


def tell(stack: Stack, *, keep: bool) -> None:
    """Go through the four steps; with *keep*, then wait for Ctrl-C.

    Raises:
        StepError: something did not come out as it should.

    """
    _good(stack)
    _failed(stack)
    _policy(stack)
    _recomputed(stack)
    if keep:
        _look_around(stack)


def _good(stack: Stack) -> None:
    title("(a) A good request: computed by prefill, its KV cache moved to decode, decoded there")
    good = good_request(stack)
    if not good.same_text:
        raise StepError("Decode's text is not what prefill generates by itself from the same prompt.")
    words("HTTP 200, and the same text as without the transfer. /metrics counts it, by peer:")
    samples((*good.transfers, *good.bytes))
    words("Its trace crosses both servers, without any header from the client:")
    command(stack.agent, "trace", good.request_id)
    exported(stack.receiver, stack.traces, good.trace_id, len(good.spans))


def _failed(stack: Stack) -> None:
    title("(b) A real failure: decode is told a port where nobody listens; vLLM's own setting is `fail`")
    bad = bad_request(stack)
    if bad.answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        raise StepError(f"The client got HTTP {bad.answer.status} instead of an error.")
    if (bad.outcome["outcome"], bad.outcome["decidedBy"]) != ("failed", "vllm"):
        raise StepError(f"The outcome is {bad.outcome['outcome']}, decided by {bad.outcome['decidedBy']}.")
    words(
        f"The client got HTTP {bad.answer.status} after {bad.seconds:.1f} s and no reason. Penstock has it:"
    )
    samples(bad.metrics)
    command(stack.agent, "get", "events", "--request", bad.request_id)
    _inwords(stack, bad)


def _policy(stack: Stack) -> None:
    title("(c) The policy is changed on the running decode server")
    changed = set_policy(stack, "recompute")
    output(changed.ran.line, changed.ran.output)
    words("The engine itself has answered that it is in force. So say the metrics:")
    samples(changed.action)


def _recomputed(stack: Stack) -> None:
    title("(d) The same failure again; nothing was restarted")
    pid = stack.decode.child.pid
    bad = bad_request(stack)
    if bad.answer.status != HTTPStatus.OK:
        raise StepError(f"The client got HTTP {bad.answer.status} instead of 200: {bad.answer.text[:300]}")
    if bad.outcome["outcome"] != "recomputed" or not int(bad.outcome["tokensRecomputed"]):
        raise StepError(f"The outcome is {bad.outcome['outcome']} instead of recomputed.")
    if not stack.decode.child.running:
        raise StepError("The decode server is not the one that was started.")
    words(
        f"The client got HTTP 200: decode (still pid {pid}) computed {bad.outcome['tokensRecomputed']} "
        "tokens of the prompt itself."
    )
    samples(bad.metrics)
    _inwords(stack, bad)


def _inwords(stack: Stack, bad: Bad) -> None:
    command(stack.agent, "explain", bad.request_id)
    command(stack.agent, "trace", bad.request_id)
    exported(stack.receiver, stack.traces, bad.trace_id, len(bad.spans))


def _look_around(stack: Stack) -> None:
    title("Everything stays up until Ctrl-C")
    say(f"  metrics   curl http://{stack.agent.http}/metrics")
    say(f"  agentctl  .venv/bin/agentctl --address {stack.agent.admin} get engines")
    say(f"  prefill   {stack.prefill.url}/v1/completions")
    say(f"  decode    {stack.decode.url}/v1/completions")
    say(f"  traces    {stack.traces}")
    say(f"  logs      {stack.agent.directory}")
    signal.pause()
