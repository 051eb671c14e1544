"""The steps of ``make demo``. Each acts on the running stack once and returns what Penstock recorded.

The engine tests run the same steps and assert more.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from demo.common.client import Answer, complete, prefill_decode
from demo.common.processes import free_port
from demo.common.progress import report
from demo.common.steps import PROMPT, StepError, backend_spans, until
from demo.servers import LOOPBACK

if TYPE_CHECKING:
    from demo.common.agent import Agent, CommandResult
    from demo.common.metrics import Sample
    from demo.common.otlp_receiver import Span
    from demo.stack import Stack

POLICY = "decode-default"
# Of a handshake that vLLM gives up after 5 s, however busy the machine is.
_ATTEMPTS = 6


@dataclass(frozen=True, slots=True)
class GoodRequest:
    """A request served by prefill and decode.

    Attributes:
        same_text: whether prefill's own completion is the same, token for token.
        spans: of its trace, as exported; empty with a foreign backend.

    """

    request_id: str
    trace_id: str
    same_text: bool
    transfers: tuple[Sample, ...]
    bytes: tuple[Sample, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """A request whose KV blocks could not be loaded.

    Attributes:
        peer: the closed port that decode was sent to.
        outcome: the ``loadOutcome`` event's body, as ``agentctl -o json`` prints it.
        metrics: the samples that count this failure and its outcome.

    """

    answer: Answer
    peer: str
    request_id: str
    trace_id: str
    outcome: dict[str, Any]
    metrics: tuple[Sample, ...]
    spans: tuple[Span, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """A policy in force on the running decode server."""

    ran: CommandResult
    hash: str
    action: tuple[Sample, ...]


def good_request(stack: Stack) -> GoodRequest:
    """Send a request from prefill to decode and wait until metrics and trace show it.

    Raises:
        StepError: a server did not answer 200, or the transfer or the trace did not appear.

    """
    agent, peer = stack.agent, stack.prefill.peer
    labels = {"server": "decode", "peer": peer, "result": "ok"}
    before = agent.metrics().value("penstock_transfers_total", **labels)
    prompt, answer = _good_answer(stack)
    until(
        lambda: agent.metrics().value("penstock_transfers_total", **labels) > before,
        f"penstock_transfers_total does not count the transfer from {peer}",
    )
    trace = until(
        lambda: _trace_with(agent, answer.body["id"], "kv.load"),
        f"agentctl trace does not show the load of request {answer.body['id']}",
    )
    metrics = agent.metrics()
    return GoodRequest(
        request_id=_request_id(trace, "vllm-decode"),
        trace_id=trace["traceId"],
        same_text=answer.completion == complete(stack.prefill.url, prompt).completion,
        transfers=tuple(metrics.select("penstock_transfers_total", **labels)),
        bytes=tuple(metrics.select("penstock_transfer_size_bytes_sum", server="decode")),
        spans=backend_spans(agent, stack.receiver, answer.body["id"]),
    )


def bad_request(stack: Stack) -> FailedLoad:
    """Send decode to a closed port and wait until metrics and trace show the outcome.

    Raises:
        StepError: no outcome was recorded, or the trace did not appear.

    """
    agent, port = stack.agent, free_port()
    peer = f"{LOOPBACK}:{port}"
    began = time.monotonic()
    _, answer = prefill_decode(
        stack.prefill.url,
        stack.decode.url,
        PROMPT * 4 + uuid.uuid4().hex,
        # An unknown engine id makes decode start a handshake.
        redirect={"remote_port": port, "remote_engine_id": str(uuid.uuid4())},
    )
    seconds = time.monotonic() - began
    event = until(lambda: _outcome_about(agent, peer), f"agentctl get events shows no outcome about {peer}")
    request_id = event["requestId"]
    trace = until(
        lambda: _trace_with(agent, request_id, "kv.load"),
        f"agentctl trace does not show the failed load of request {request_id}",
    )
    # The worker emits the failure, the scheduler the outcome, independently.
    for name in ("penstock_transfer_failures_total", "penstock_load_outcomes_total"):
        until(
            partial(_counts, agent, name, peer),
            f"{name} does not count the failed load from {peer}",
        )
    metrics = agent.metrics()
    names = (
        "penstock_transfer_failures_total",
        "penstock_load_outcomes_total",
        "penstock_recomputed_tokens_total",
    )
    return FailedLoad(
        answer=answer,
        peer=peer,
        request_id=request_id,
        trace_id=trace["traceId"],
        outcome=event["loadOutcome"],
        metrics=tuple(sample for name in names for sample in metrics.select(name, peer=peer)),
        spans=backend_spans(agent, stack.receiver, request_id),
        seconds=seconds,
    )


def set_policy(stack: Stack, action: str) -> AppliedPolicy:
    """Set decode's action for failed KV loads; wait until the engine applies it.

    Raises:
        StepError: the engine did not acknowledge, or the metrics show another action.

    """
    ran = stack.agent.ctl(
        *("set-policy", POLICY, "--selector", "role=decode", "--kv-load-failure", action),
        *("--reason", "INC-42: prefill flaps", "--wait", "--timeout", "5m"),
    )
    if ran.code != 0:
        raise StepError(f"{ran.line} exited with {ran.code}: {ran.output}")
    labels = {"server": "decode", "channel": "kv", "action": action}
    until(
        lambda: stack.agent.metrics().value("penstock_policy_action", **labels) == 1,
        f"penstock_policy_action does not say {action} for decode",
    )
    metrics = stack.agent.metrics()
    return AppliedPolicy(
        ran=ran,
        hash=metrics.select("penstock_policy_info", server="decode")[0].labels["hash"],
        action=tuple(metrics.select("penstock_policy_action", **labels)),
    )


def _good_answer(stack: Stack) -> tuple[str, Answer]:
    """Return a prompt and decode's answer to it."""
    for attempt in range(1, _ATTEMPTS + 1):
        prompt = PROMPT * 6 + uuid.uuid4().hex
        _, answer = prefill_decode(stack.prefill.url, stack.decode.url, prompt)
        if answer.status == HTTPStatus.OK:
            return prompt, answer
        if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR or attempt == _ATTEMPTS:
            break
        report(
            f"decode answered {answer.status}: a busy machine needs more than vLLM's 5 s for the first handshake; again"
        )
    raise StepError(f"Decode answered {answer.status} to a good request: {answer.text[:300]}")


def _counts(agent: Agent, metric: str, peer: str) -> bool:
    return agent.metrics().value(metric, peer=peer) > 0


def _outcome_about(agent: Agent, peer: str) -> dict[str, Any] | None:
    listed = agent.ctl_json("get", "events", "--kind", "load_outcome", "--peer", peer)
    events: list[dict[str, Any]] = [entry["event"] for entry in listed["events"]]
    return events[-1] if events else None


def _trace_with(agent: Agent, request_id: str, span_name: str) -> dict[str, Any] | None:
    """Return the trace of a request once it has *span_name* and the request spans of both servers."""
    if agent.ctl("trace", request_id).code != 0:
        return None
    trace: dict[str, Any] = agent.ctl_json("trace", request_id)
    names = {span["name"] for span in trace["spans"]}
    services = {span["service"] for span in trace["spans"] if span["name"] == "penstock.request"}
    return trace if span_name in names and {"vllm-prefill", "vllm-decode"} <= services else None


def _request_id(trace: dict[str, Any], service: str) -> str:
    return next(
        str(span["requestId"])
        for span in trace["spans"]
        if span["service"] == service and span["name"] == "penstock.request"
    )
