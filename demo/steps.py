"""The four steps of the demo. Each does one thing to the running stack and returns what was seen of it.

The engine tests run the same steps and look closer.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from demo.common.client import Answer, complete, prefill_decode
from demo.common.processes import free_port
from demo.servers import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.common.agent import Agent, Ran
    from demo.common.metrics import Sample
    from demo.common.otlp_receiver import Receiver, Span
    from demo.stack import Stack

# Longer than the 30 s that prefill keeps blocks for a reader: a span of theirs closes only then.
_SEEN_SECONDS = 60.0
_POLL_SECONDS = 0.1
POLICY = "decode-default"
PROMPT = "A penstock is the gate and gauge at the head of a channel: it measures the flow. "

_T = TypeVar("_T")


class StepError(RuntimeError):
    """Something did not come out as it should; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Good:
    """A request that went through both servers.

    Attributes:
        same_text: whether prefill's own completion is the same, token for token.
        spans: of its trace, as the backend got them; empty where the backend is somebody else's.

    """

    request_id: str
    trace_id: str
    same_text: bool
    transfers: tuple[Sample, ...]
    bytes: tuple[Sample, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Bad:
    """A request whose KV blocks could not be loaded.

    Attributes:
        peer: the closed port that decode was sent to.
        outcome: the ``loadOutcome`` event's body, as ``agentctl -o json`` prints it.
        metrics: what counts this failure and its outcome.

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
class Changed:
    """A policy in force on the running decode server."""

    ran: Ran
    hash: str
    action: tuple[Sample, ...]


def good_request(stack: Stack) -> Good:
    """Send a request from prefill to decode and wait until metrics and trace show it.

    Raises:
        StepError: a server did not answer 200, or the transfer or the trace was not seen.

    """
    agent, peer = stack.agent, stack.prefill.peer
    labels = {"server": "decode", "peer": peer, "result": "ok"}
    before = agent.metrics().value("penstock_transfers_total", **labels)
    prompt = PROMPT * 6 + uuid.uuid4().hex
    _, answer = prefill_decode(stack.prefill.url, stack.decode.url, prompt)
    if answer.status != HTTPStatus.OK:
        raise StepError(f"Decode answered {answer.status} to a good request: {answer.text[:300]}")
    until(
        lambda: agent.metrics().value("penstock_transfers_total", **labels) > before,
        f"penstock_transfers_total does not count the transfer from {peer}",
    )
    trace = until(
        lambda: _trace_with(agent, answer.body["id"], "kv.load"),
        f"agentctl trace does not show the load of request {answer.body['id']}",
    )
    metrics = agent.metrics()
    return Good(
        request_id=_request_id(trace, "vllm-decode"),
        trace_id=trace["traceId"],
        same_text=answer.completion == complete(stack.prefill.url, prompt).completion,
        transfers=tuple(metrics.select("penstock_transfers_total", **labels)),
        bytes=tuple(metrics.select("penstock_transfer_size_bytes_sum", server="decode")),
        spans=backend_spans(agent, stack.receiver, answer.body["id"]),
    )


def bad_request(stack: Stack) -> Bad:
    """Send decode to a port where nobody listens and wait until metrics and trace show what came of it.

    Raises:
        StepError: no outcome was recorded, or the trace was not seen.

    """
    agent, port = stack.agent, free_port()
    peer = f"{LOOPBACK}:{port}"
    began = time.monotonic()
    _, answer = prefill_decode(
        stack.prefill.url,
        stack.decode.url,
        PROMPT * 4 + uuid.uuid4().hex,
        # An engine id that decode has never seen makes it shake hands.
        redirect={"remote_port": port, "remote_engine_id": str(uuid.uuid4())},
    )
    seconds = time.monotonic() - began
    event = until(lambda: _outcome_about(agent, peer), f"agentctl get events shows no outcome about {peer}")
    request_id = event["requestId"]
    trace = until(
        lambda: _trace_with(agent, request_id, "kv.load"),
        f"agentctl trace does not show the failed load of request {request_id}",
    )
    # The worker tells the failure, the scheduler the outcome: each in its own time.
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
    return Bad(
        answer=answer,
        peer=peer,
        request_id=request_id,
        trace_id=trace["traceId"],
        outcome=event["loadOutcome"],
        metrics=tuple(sample for name in names for sample in metrics.select(name, peer=peer)),
        spans=backend_spans(agent, stack.receiver, request_id),
        seconds=seconds,
    )


def set_policy(stack: Stack, action: str) -> Changed:
    """Set what decode does about a failed KV load, and wait until the engine has it in force.

    Raises:
        StepError: the engine did not acknowledge, or the metrics say otherwise.

    """
    ran = stack.agent.ctl(
        *("set-policy", POLICY, "--selector", "role=decode", "--kv-load-failure", action),
        *("--reason", "INC-42: prefill flaps", "--wait"),
    )
    if ran.code != 0:
        raise StepError(f"{ran.line} ended with {ran.code}: {ran.output}")
    labels = {"server": "decode", "channel": "kv", "action": action}
    until(
        lambda: stack.agent.metrics().value("penstock_policy_action", **labels) == 1,
        f"penstock_policy_action does not say {action} for decode",
    )
    metrics = stack.agent.metrics()
    return Changed(
        ran=ran,
        hash=metrics.select("penstock_policy_info", server="decode")[0].labels["hash"],
        action=tuple(metrics.select("penstock_policy_action", **labels)),
    )


def until(
    look: Callable[[], _T | None], complaint: str | Callable[[], str], seconds: float = _SEEN_SECONDS
) -> _T:
    """Call *look* until it returns something true, and return that.

    Raises:
        StepError: nothing within *seconds*; *complaint* says what is missing, or is asked for it then.

    """
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            said = complaint if isinstance(complaint, str) else complaint()
            raise StepError(f"{said}, {seconds:.0f} s later.")
        time.sleep(_POLL_SECONDS)
    return seen


def _counts(agent: Agent, metric: str, peer: str) -> bool:
    return agent.metrics().value(metric, peer=peer) > 0


def _outcome_about(agent: Agent, peer: str) -> dict[str, Any] | None:
    listed = agent.ctl_json("get", "events", "--kind", "load_outcome", "--peer", peer)
    events: list[dict[str, Any]] = [entry["event"] for entry in listed["events"]]
    return events[-1] if events else None


def _trace_with(agent: Agent, request_id: str, span_name: str) -> dict[str, Any] | None:
    """Return the trace of a request once it has that span and the request's own on decode's side."""
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


def backend_spans(agent: Agent, receiver: Receiver | None, request_id: str) -> tuple[Span, ...]:
    """Wait until the backend has all spans that agentctl shows of a request's trace, if the backend is ours.

    agentctl is asked each time: what is still open when it is asked first may end under another id.

    Raises:
        StepError: it does not get there.

    """
    if receiver is None:
        return ()
    trace: dict[str, Any] = {}

    def missing() -> list[str]:
        trace.update(agent.ctl_json("trace", request_id))
        here = {span.span_id for span in receiver.spans()}
        return [
            f"{span['name']} of {span['service']} ({span['spanId']})"
            for span in trace["spans"]
            if span["spanId"] not in here
        ]

    until(
        lambda: not missing(),
        lambda: f"The trace backend lacks spans of trace {trace['traceId']}: {', '.join(missing())}",
    )
    return tuple(receiver.spans(trace["traceId"]))
