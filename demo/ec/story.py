"""The narration of ``make demo-ec``: steps, commands and their real output."""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import TYPE_CHECKING

from demo.common.agent import AGENTCTL
from demo.common.console import (
    command,
    command_output,
    heading,
    keep_running,
    paragraph,
    samples,
    say,
    trace_export,
)
from demo.common.steps import StepError
from demo.ec.steps import (
    deferred_request,
    encode_locally,
    failed_request,
    failures,
    good_request,
    new_encoder,
    set_policy,
    transfers,
)
from demo.servers import ROOT

if TYPE_CHECKING:
    from demo.ec.stack import EcStack
    from demo.ec.steps import RecordedRequest


def play(stack: EcStack, *, keep: bool) -> None:
    """Run the steps; with *keep*, then wait for Ctrl-C.

    Raises:
        StepError: a step had an unexpected result.

    """
    _good(stack)
    _waits(stack)
    _fails(stack)
    _policy(stack)
    _recomputed(stack)
    if keep:
        _keep_running(stack)


def _good(stack: EcStack) -> None:
    heading(
        "(a) A successful request: two pictures; their embeddings move from the encoder to the language model"
    )
    good = good_request(stack)
    paragraph("HTTP 200. /metrics counts the probes of the encoder's cache and the transfers, by peer:")
    samples(transfers(stack))
    _explain(stack, good)


def _waits(stack: EcStack) -> None:
    heading("(b) A deferral: the network stalls in the middle of a transfer")
    waited = deferred_request(stack)
    paragraph(
        "The request is deferred, and the scheduler serves another one meanwhile (HTTP 200). The gauges during the wait:"
    )
    samples(waited.gauges)
    paragraph(f"The network recovers: HTTP 200 after {waited.seen.seconds:.1f} s.")
    _explain(stack, waited.seen)


def _fails(stack: EcStack) -> None:
    heading("(c) kill -9 of the encoder in the middle of a transfer; the connector's own setting is `fail`")
    _, broken = failed_request(stack)
    if broken.answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
        raise StepError(
            f"The client got HTTP {broken.answer.status} instead of 503: {broken.answer.text[:300]}"
        )
    paragraph(f"The client got HTTP 503 after {broken.seconds:.1f} s, which a router may retry:")
    say(f"  {broken.answer.body['error']['message']}")
    samples(failures(stack))
    _explain(stack, broken)


def _policy(stack: EcStack) -> None:
    heading("(d) A policy is applied to the running language model, while a new encoder starts")
    changed = set_policy(stack, "recompute")
    command_output(changed.ran.line, changed.ran.output)
    paragraph("The engine has acknowledged that it is in force. The metrics agree:")
    samples(changed.action)
    new_encoder(stack)


def _recomputed(stack: EcStack) -> None:
    heading("(e) The same failure again: kill -9 of the encoder in the middle of a transfer")
    pid = stack.language.child.pid
    question, broken = failed_request(stack)
    if broken.answer.status != HTTPStatus.OK:
        raise StepError(
            f"The client got HTTP {broken.answer.status} instead of 200: {broken.answer.text[:300]}"
        )
    if broken.outcome["outcome"] != "recomputed":
        raise StepError(f"The outcome is {broken.outcome['outcome']} instead of recomputed.")
    if encode_locally(stack, question) != broken.answer.tokens:
        raise StepError("The answer differs from that of a run without a failure.")
    paragraph(
        f"The client got HTTP 200: the language model (still pid {pid}) encoded the picture itself. The answer equals, "
        "token for token, that of a run without a failure."
    )
    samples(failures(stack))
    _explain(stack, broken)


def _explain(stack: EcStack, seen: RecordedRequest) -> None:
    command(stack.agent, "explain", seen.request_id)
    command(stack.agent, "trace", seen.request_id)
    trace_export(stack.receiver, stack.traces, seen.trace_id, len(seen.spans))


def _keep_running(stack: EcStack) -> None:
    new_encoder(stack)
    send = f"{sys.executable} -m demo.ec.send {stack.encoder.url} {stack.language.url}"
    keep_running(
        [
            ("request", f"(cd {ROOT} && {send} 'What do you see?')   # with a new picture, through both"),
            ("agentctl", f"export AGENTCTL_ADDRESS={stack.agent.admin}"),
            ("", f"{AGENTCTL} get engines"),
            ("traces", f"{AGENTCTL} trace REQUEST   # REQUEST is what the request prints"),
            ("page", stack.agent.page),
            ("metrics", f"curl http://{stack.agent.http}/metrics"),
            ("logs", str(stack.agent.directory)),
        ]
    )
