"""The narration of ``make demo``: steps, commands and their real output."""

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
    trace_export,
)
from demo.common.steps import StepError
from demo.servers import ROOT
from demo.steps import bad_request, good_request, set_policy

if TYPE_CHECKING:
    from demo.stack import Stack
    from demo.steps import FailedLoad


def play(stack: Stack, *, keep: bool) -> None:
    """Run the four steps; with *keep*, then wait for Ctrl-C.

    Raises:
        StepError: a step had an unexpected result.

    """
    _good(stack)
    _failed(stack)
    _policy(stack)
    _recomputed(stack)
    if keep:
        _keep_running(stack)


def _good(stack: Stack) -> None:
    heading("(a) A successful request: prefill computes the prompt, its KV cache moves to decode")
    good = good_request(stack)
    if not good.same_text:
        raise StepError("Decode's text is not what prefill generates by itself from the same prompt.")
    paragraph("HTTP 200, and the same text as without a transfer. /metrics counts the transfer by peer:")
    samples((*good.transfers, *good.bytes))
    paragraph("Its trace crosses both servers, without any header from the client:")
    command(stack.agent, "trace", good.request_id)
    trace_export(stack.receiver, stack.traces, good.trace_id, len(good.spans))


def _failed(stack: Stack) -> None:
    heading("(b) A real failure: decode is sent to a closed port; vLLM's own setting is `fail`")
    bad = bad_request(stack)
    if bad.answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        raise StepError(f"The client got HTTP {bad.answer.status} instead of an error.")
    if (bad.outcome["outcome"], bad.outcome["decidedBy"]) != ("failed", "vllm"):
        raise StepError(f"The outcome is {bad.outcome['outcome']}, decided by {bad.outcome['decidedBy']}.")
    paragraph(
        f"The client got HTTP {bad.answer.status} after {bad.seconds:.1f} s without a reason. Penstock recorded it:"
    )
    samples(bad.metrics)
    command(stack.agent, "get", "events", "--request", bad.request_id)
    _explain(stack, bad)


def _policy(stack: Stack) -> None:
    heading("(c) A policy is applied to the running decode server")
    changed = set_policy(stack, "recompute")
    command_output(changed.ran.line, changed.ran.output)
    paragraph("The engine has acknowledged that it is in force. The metrics agree:")
    samples(changed.action)


def _recomputed(stack: Stack) -> None:
    heading("(d) The same failure again, without a restart")
    pid = stack.decode.child.pid
    bad = bad_request(stack)
    if bad.answer.status != HTTPStatus.OK:
        raise StepError(f"The client got HTTP {bad.answer.status} instead of 200: {bad.answer.text[:300]}")
    if bad.outcome["outcome"] != "recomputed" or not int(bad.outcome["tokensRecomputed"]):
        raise StepError(f"The outcome is {bad.outcome['outcome']} instead of recomputed.")
    if not stack.decode.child.running:
        raise StepError("The decode server was restarted or has exited.")
    paragraph(
        f"The client got HTTP 200: decode (still pid {pid}) computed {bad.outcome['tokensRecomputed']} "
        "tokens of the prompt itself."
    )
    samples(bad.metrics)
    _explain(stack, bad)


def _explain(stack: Stack, bad: FailedLoad) -> None:
    command(stack.agent, "explain", bad.request_id)
    command(stack.agent, "trace", bad.request_id)
    trace_export(stack.receiver, stack.traces, bad.trace_id, len(bad.spans))


def _keep_running(stack: Stack) -> None:
    send = f"{sys.executable} -m demo.send {stack.prefill.url} {stack.decode.url}"
    keep_running(
        [
            ("request", f"(cd {ROOT} && {send} 'What is a penstock?')   # through prefill and decode"),
            ("agentctl", f"export AGENTCTL_ADDRESS={stack.agent.admin}"),
            ("", f"{AGENTCTL} get engines"),
            ("traces", f"{AGENTCTL} trace REQUEST   # REQUEST is what the request prints"),
            ("page", stack.agent.page),
            ("metrics", f"curl http://{stack.agent.http}/metrics"),
            ("logs", str(stack.agent.directory)),
        ]
    )
