"""The steps of ``make demo-ec``. Each acts on the running stack once and returns what Penstock recorded.

The engine tests run the same steps and assert more.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from demo.common.client import chat
from demo.common.images import Picture
from demo.common.steps import PROMPT, StepError, backend_spans, until
from demo.ec.servers import forget_all

if TYPE_CHECKING:
    from demo.common.agent import CommandResult
    from demo.common.client import Answer
    from demo.common.metrics import Metrics, Sample
    from demo.common.otlp_receiver import Span
    from demo.ec.stack import EcStack

POLICY = "language-default"
# More than the answers to some probes, less than one encoder output.
_BYTES_BEFORE_HOLD = 1000
_GAUGES = ("penstock_deferred_requests", "penstock_transfers_in_flight")


@dataclass(frozen=True, slots=True)
class Question:
    """Text and new pictures; *name* is the client's request id."""

    name: str
    parts: tuple[str | Picture, ...]

    @classmethod
    def new(cls, pictures: int) -> Question:
        """Return a question with this number of new pictures."""
        name = f"ask-{uuid.uuid4().hex[:8]}"
        seen = [Picture(f"{name} {number}") for number in range(pictures)]
        return cls(name, (PROMPT, *seen, " What do you see?"))


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request and what the agent recorded about it.

    Attributes:
        outcome: the ``loadOutcome`` event's body, as ``agentctl -o json`` prints it; empty if there was none.
        spans: of its trace, as exported; empty with a foreign backend.

    """

    answer: Answer
    request_id: str
    trace_id: str
    outcome: dict[str, Any]
    spans: tuple[Span, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class DeferredRequest:
    """A request deferred for its transfer while another one was served.

    Attributes:
        gauges: while it waited.

    """

    seen: RecordedRequest
    other: Answer
    gauges: tuple[Sample, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """A policy in force on the running language model."""

    ran: CommandResult
    action: tuple[Sample, ...]


def encode(stack: EcStack, question: Question) -> None:
    """Send the question to the encoder, as a router does first.

    Raises:
        StepError: it did not answer 200.

    """
    answer = chat(stack.encoder.url, question.parts, max_tokens=1)
    if answer.status != HTTPStatus.OK:
        raise StepError(f"The encoder answered {answer.status}: {answer.text[:300]}")


def good_request(stack: EcStack) -> RecordedRequest:
    """Encode two pictures, ask about them, and wait until the trace shows probes and transfers.

    Raises:
        StepError: a server did not answer 200, or the transfer did not appear.

    """
    question = Question.new(2)
    encode(stack, question)
    answer, seconds = _timed(stack, question)
    if answer.status != HTTPStatus.OK:
        raise StepError(f"The language model answered {answer.status} to a good request: {answer.text[:300]}")
    until(
        lambda: stack.agent.metrics().value("penstock_transfers_total", **_received(stack), result="ok") >= 2,  # noqa: PLR2004
        f"penstock_transfers_total does not count the transfers from {stack.link.address}",
    )
    return _record(stack, answer, seconds, {"ec.probe", "ec.load"})


def deferred_request(stack: EcStack) -> DeferredRequest:
    """Ask about a picture whose transfer is held; meanwhile send another request.

    Raises:
        StepError: the first was not deferred, or the other one was.

    """
    question, other = Question.new(1), Question.new(0)
    encode(stack, question)
    with ThreadPoolExecutor(1) as sender:
        stack.link.hold(_BYTES_BEFORE_HOLD)
        try:
            sent = sender.submit(_timed, stack, question)
            until(lambda: stack.link.held, "No transfer has started")
            answered = chat(stack.language.url, other.parts)
            metrics = until(
                lambda: _waiting(stack.agent.metrics()),
                f"{' and '.join(_GAUGES)} do not show the deferred request",
            )
        finally:
            stack.link.release()
        answer, seconds = sent.result()
    if (answer.status, answered.status) != (HTTPStatus.OK, HTTPStatus.OK):
        raise StepError(f"The answers were HTTP {answer.status} and {answered.status} instead of 200.")
    return DeferredRequest(
        _record(stack, answer, seconds, {"ec.probe", "penstock.deferral", "ec.load"}),
        answered,
        tuple(sample for name in _GAUGES for sample in metrics.select(name, server="language")),
    )


def _waiting(metrics: Metrics) -> Metrics | None:
    """Return *metrics* if they show one request that waits and its transfer."""
    shown = all(metrics.value(name, server="language") == 1 for name in _GAUGES)
    return metrics if shown else None


def failed_request(stack: EcStack) -> tuple[Question, RecordedRequest]:
    """Ask about a picture and ``kill -9`` the encoder in the middle of its transfer.

    Raises:
        StepError: no trace or outcome was recorded.

    """
    question = Question.new(1)
    encode(stack, question)
    with ThreadPoolExecutor(1) as sender:
        stack.link.hold(_BYTES_BEFORE_HOLD)
        try:
            sent = sender.submit(_timed, stack, question)
            until(lambda: stack.link.held, "No transfer has started")
            stack.encoder.kill()
            answer, seconds = sent.result()
        finally:
            stack.link.release()
    return question, _record(stack, answer, seconds, {"ec.probe", "ec.load"}, question=question, failed=True)


def new_encoder(stack: EcStack) -> None:
    """Start a new encoder in place of the killed one.

    Raises:
        ChildError: it does not start.

    """
    stack.encoder.start().wait_ready()
    stack.link.lead_to(stack.encoder.port)


def encode_locally(stack: EcStack, question: Question) -> tuple[int, ...]:
    """Ask *question* again with empty caches and no encoder; return the tokens."""
    forget_all(stack.language)
    return chat(stack.language.url, question.parts).tokens


def set_policy(stack: EcStack, action: str) -> AppliedPolicy:
    """Set the language model's action for failed loads; wait until the engine applies it.

    Raises:
        StepError: the engine did not acknowledge, or the metrics show another action.

    """
    ran = stack.agent.ctl(
        *("set-policy", POLICY, "--selector", "tier=language", "--ec-load-failure", action),
        *("--reason", "INC-43: encoders die", "--wait", "--timeout", "5m"),
    )
    if ran.code != 0:
        raise StepError(f"{ran.line} exited with {ran.code}: {ran.output}")
    labels = {"server": "language", "channel": "ec", "action": action}
    until(
        lambda: stack.agent.metrics().value("penstock_policy_action", **labels) == 1,
        f"penstock_policy_action does not say {action} for the language model",
    )
    return AppliedPolicy(ran, tuple(stack.agent.metrics().select("penstock_policy_action", **labels)))


def transfers(stack: EcStack) -> tuple[Sample, ...]:
    """Return the samples of the language model's probes and transfers."""
    metrics = stack.agent.metrics()
    return (
        *metrics.select("penstock_cache_probes_total", server="language"),
        *metrics.select("penstock_transfers_total", **_received(stack)),
    )


def failures(stack: EcStack) -> tuple[Sample, ...]:
    """Return the samples of failed loads and their outcomes."""
    metrics = stack.agent.metrics()
    names = ("penstock_transfer_failures_total", "penstock_load_outcomes_total")
    return tuple(s for name in names for s in metrics.select(name, server="language", channel="ec"))


def _received(stack: EcStack) -> dict[str, str]:
    return {"server": "language", "channel": "ec", "direction": "receive", "peer": stack.link.address}


def _timed(stack: EcStack, question: Question) -> tuple[Answer, float]:
    began = time.monotonic()
    answer = chat(stack.language.url, question.parts, headers={"X-Request-Id": question.name})
    return answer, time.monotonic() - began


def _record(
    stack: EcStack,
    answer: Answer,
    seconds: float,
    wanted: set[str],
    *,
    question: Question | None = None,
    failed: bool = False,
) -> RecordedRequest:
    """Wait until the agent has the trace with the *wanted* spans and, if it *failed*, the outcome."""
    name = question.name if question is not None else str(answer.body["id"])
    trace = until(
        lambda: _trace_with(stack, name, wanted), f"agentctl trace does not show {wanted} of {name}"
    )
    request_id = next(str(span["requestId"]) for span in trace["spans"] if span["name"] == "penstock.request")
    outcome = (
        until(lambda: _outcome(stack, request_id), f"agentctl get events shows no outcome of {name}")
        if failed
        else {}
    )
    spans = backend_spans(stack.agent, stack.receiver, request_id)
    return RecordedRequest(answer, request_id, trace["traceId"], outcome, spans, seconds)


def _trace_with(stack: EcStack, name: str, wanted: set[str]) -> dict[str, Any] | None:
    if stack.agent.ctl("trace", name).code != 0:
        return None
    trace: dict[str, Any] = stack.agent.ctl_json("trace", name)
    return trace if wanted | {"penstock.request"} <= {span["name"] for span in trace["spans"]} else None


def _outcome(stack: EcStack, request_id: str) -> dict[str, Any] | None:
    listed = stack.agent.ctl_json("get", "events", "--kind", "load_outcome", "--request", request_id)
    events: list[dict[str, Any]] = [entry["event"]["loadOutcome"] for entry in listed["events"]]
    return events[-1] if events else None
