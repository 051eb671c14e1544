"""The demo in words: what is done, the commands, and what they really said."""

from __future__ import annotations

import signal
import textwrap
from http import HTTPStatus
from typing import TYPE_CHECKING

from demo.steps import StepError, bad_request, good_request, set_policy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from demo.metrics import Sample
    from demo.stack import Stack
    from demo.steps import Bad

_WIDTH = 100


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


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
    _title("(a) A good request: computed by prefill, its KV cache moved to decode, decoded there")
    good = good_request(stack)
    if not good.same_text:
        raise StepError("Decode's text is not what prefill generates by itself from the same prompt.")
    _words("HTTP 200, and the same text as without the transfer. /metrics counts it, by peer:")
    _samples((*good.transfers, *good.bytes))
    _words("Its trace crosses both servers, without any header from the client:")
    _command(stack, "trace", good.request_id)
    _exported(stack, good.trace_id, len(good.spans))


def _failed(stack: Stack) -> None:
    _title("(b) A real failure: decode is told a port where nobody listens; vLLM's own setting is `fail`")
    bad = bad_request(stack)
    if bad.answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        raise StepError(f"The client got HTTP {bad.answer.status} instead of an error.")
    if (bad.outcome["outcome"], bad.outcome["decidedBy"]) != ("failed", "vllm"):
        raise StepError(f"The outcome is {bad.outcome['outcome']}, decided by {bad.outcome['decidedBy']}.")
    _words(
        f"The client got HTTP {bad.answer.status} after {bad.seconds:.1f} s and no reason. Penstock has it:"
    )
    _samples(bad.metrics)
    _command(stack, "get", "events", "--request", bad.request_id)
    _in_words(stack, bad)


def _policy(stack: Stack) -> None:
    _title("(c) The policy is changed on the running decode server")
    changed = set_policy(stack, "recompute")
    say(f"$ {changed.ran.line}")
    say(textwrap.indent(changed.ran.output, "  "))
    _words("The engine itself has answered that it is in force. So say the metrics:")
    _samples(changed.action)


def _recomputed(stack: Stack) -> None:
    _title("(d) The same failure again; nothing was restarted")
    pid = stack.decode.child.pid
    bad = bad_request(stack)
    if bad.answer.status != HTTPStatus.OK:
        raise StepError(f"The client got HTTP {bad.answer.status} instead of 200: {bad.answer.text[:300]}")
    if bad.outcome["outcome"] != "recomputed" or not int(bad.outcome["tokensRecomputed"]):
        raise StepError(f"The outcome is {bad.outcome['outcome']} instead of recomputed.")
    if not stack.decode.child.running:
        raise StepError("The decode server is not the one that was started.")
    _words(
        f"The client got HTTP 200: decode (still pid {pid}) computed {bad.outcome['tokensRecomputed']} "
        "tokens of the prompt itself."
    )
    _samples(bad.metrics)
    _in_words(stack, bad)


def _in_words(stack: Stack, bad: Bad) -> None:
    _command(stack, "explain", bad.request_id)
    _command(stack, "trace", bad.request_id)
    _exported(stack, bad.trace_id, len(bad.spans))


def _look_around(stack: Stack) -> None:
    _title("Everything stays up until Ctrl-C")
    say(f"  metrics   curl http://{stack.agent.http}/metrics")
    say(f"  agentctl  .venv/bin/agentctl --address {stack.agent.admin} get engines")
    say(f"  prefill   {stack.prefill.url}/v1/completions")
    say(f"  decode    {stack.decode.url}/v1/completions")
    say(f"  traces    {stack.traces}")
    say(f"  logs      {stack.agent.directory}")
    signal.pause()


def _title(text: str) -> None:
    say(f"\n━━━ {text}")


def _words(text: str) -> None:
    say(textwrap.fill(text, _WIDTH))


def _samples(samples: Iterable[Sample]) -> None:
    for sample in samples:
        say(f"  {sample}")


def _command(stack: Stack, *arguments: str) -> None:
    ran = stack.agent.ctl(*arguments)
    if ran.code != 0:
        raise StepError(f"{ran.line} ended with {ran.code}: {ran.output}")
    say(f"$ {ran.line}")
    say(textwrap.indent(ran.output, "  "))


def _exported(stack: Stack, trace_id: str, spans: int) -> None:
    if stack.receiver is None:
        _words(f"It was exported too: search trace {trace_id} in the backend behind {stack.traces}.")
    else:
        _words(f"The OTLP backend of this demo ({stack.traces}) holds {spans} spans of trace {trace_id}.")
