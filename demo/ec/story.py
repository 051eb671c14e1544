"""The encoder's demo in words: what is done, the commands, and what they really said."""

from __future__ import annotations

import signal
from http import HTTPStatus
from typing import TYPE_CHECKING

from demo.common.console import command, exported, output, samples, say, title, words
from demo.ec.steps import (
    broken_request,
    encoded_here,
    failures,
    good_request,
    new_encoder,
    set_policy,
    transfers,
    waiting_request,
)
from demo.steps import StepError

if TYPE_CHECKING:
    from demo.ec.stack import EcStack
    from demo.ec.steps import Seen


def tell(stack: EcStack, *, keep: bool) -> None:
    """Go through the steps; with *keep*, then wait for Ctrl-C.

    Raises:
        StepError: something did not come out as it should.

    """
    _good(stack)
    _waits(stack)
    _fails(stack)
    _policy(stack)
    _recomputed(stack)
    if keep:
        _look_around(stack)


def _good(stack: EcStack) -> None:
    title(
        "(a) A good request: two pictures, encoded by the encoder, their embeddings moved to the language model"
    )
    good = good_request(stack)
    words("HTTP 200. /metrics counts the questions to the encoder and the transfers, by peer:")
    samples(transfers(stack))
    _in_words(stack, good)


def _waits(stack: EcStack) -> None:
    title("(b) A deferral: the network stands still in the middle of a transfer")
    waited = waiting_request(stack)
    words(
        "The request waits, and the scheduler serves another one meanwhile (HTTP 200). While it waits, the gauges say so:"
    )
    samples(waited.gauges)
    words(f"Then the network goes on: HTTP 200 after {waited.seen.seconds:.1f} s.")
    _in_words(stack, waited.seen)


def _fails(stack: EcStack) -> None:
    title("(c) kill -9 of the encoder in the middle of a transfer; the connector's own setting is `fail`")
    _, broken = broken_request(stack)
    if broken.answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
        raise StepError(
            f"The client got HTTP {broken.answer.status} instead of 503: {broken.answer.text[:300]}"
        )
    words(f"The client got HTTP 503 after {broken.seconds:.1f} s, which a router may retry:")
    say(f"  {broken.answer.body['error']['message']}")
    samples(failures(stack))
    _in_words(stack, broken)


def _policy(stack: EcStack) -> None:
    title("(d) The policy is changed on the running language model, while a new encoder starts")
    changed = set_policy(stack, "recompute")
    output(changed.ran.line, changed.ran.output)
    words("The engine itself has answered that it is in force. So say the metrics:")
    samples(changed.action)
    new_encoder(stack)


def _recomputed(stack: EcStack) -> None:
    title("(e) The same again: kill -9 of the encoder in the middle of a transfer")
    pid = stack.language.child.pid
    question, broken = broken_request(stack)
    if broken.answer.status != HTTPStatus.OK:
        raise StepError(
            f"The client got HTTP {broken.answer.status} instead of 200: {broken.answer.text[:300]}"
        )
    if broken.outcome["outcome"] != "recomputed":
        raise StepError(f"The outcome is {broken.outcome['outcome']} instead of recomputed.")
    if encoded_here(stack, question) != broken.answer.tokens:
        raise StepError("The answer is not that of a run without a failure.")
    words(
        f"The client got HTTP 200: the language model (still pid {pid}) encoded the picture itself. The answer is, "
        "token for token, that of a run without a failure."
    )
    samples(failures(stack))
    _in_words(stack, broken)


def _in_words(stack: EcStack, seen: Seen) -> None:
    command(stack.agent, "explain", seen.request_id)
    command(stack.agent, "trace", seen.request_id)
    exported(stack.receiver, stack.traces, seen.trace_id, len(seen.spans))


def _look_around(stack: EcStack) -> None:
    new_encoder(stack)
    title("Everything stays up until Ctrl-C")
    say(f"  metrics   curl http://{stack.agent.http}/metrics")
    say(f"  agentctl  .venv/bin/agentctl --address {stack.agent.admin} get engines")
    say(f"  encoder   {stack.encoder.url}/v1/chat/completions")
    say(f"  language  {stack.language.url}/v1/chat/completions")
    say(f"  traces    {stack.traces}")
    say(f"  logs      {stack.agent.directory}")
    signal.pause()
