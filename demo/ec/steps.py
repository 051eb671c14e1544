"""The steps of `make demo-ec`. Each does one thing to the running stack and returns what was seen of it.

The engine tests run the same steps and look closer.
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
from demo.ec.servers import forget_all
from demo.steps import PROMPT, StepError, backend_spans, until

if TYPE_CHECKING:
    from demo.common.agent import Ran
    from demo.common.client import Answer
    from demo.common.metrics import Sample
    from demo.common.otlp_receiver import Span
    from demo.ec.stack import EcStack

POLICY = "language-default"
# More than the answers to a few probes, less than one encoder output.
_INTO_A_TRANSFER = 1000


@dataclass(frozen=True, slots=True)
class Question:
    """Some text and pictures that nobody has seen; *name* is what the client calls the request."""

    name: str
    parts: tuple[str | Picture, ...]

    @classmethod
    def new(cls, pictures: int) -> Question:
        """Return one with so many pictures."""
        name = f"ask-{uuid.uuid4().hex[:8]}"
        seen = [Picture(f"{name} {number}") for number in range(pictures)]
        return cls(name, (PROMPT, *seen, " What do you see?"))


@dataclass(frozen=True, slots=True)
class Seen:
    """A request and what the agent has of it.

    Attributes:
        outcome: the ``loadOutcome`` event's body, as ``agentctl -o json`` prints it; empty if there was none.
        spans: of its trace, as the backend got them; empty where the backend is somebody else's.

    """

    answer: Answer
    request_id: str
    trace_id: str
    outcome: dict[str, Any]
    spans: tuple[Span, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Waited:
    """A request that waited for its transfer while another one was served.

    Attributes:
        gauges: while it waited.

    """

    seen: Seen
    other: Answer
    gauges: tuple[Sample, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Changed:
    """A policy in force on the running language model."""

    ran: Ran
    action: tuple[Sample, ...]


def encode(stack: EcStack, question: Question) -> None:
    """Do what a router does first: have the encoder encode the pictures.

    Raises:
        StepError: it did not answer 200.

    """
    answer = chat(stack.encoder.url, question.parts, max_tokens=1)
    if answer.status != HTTPStatus.OK:
        raise StepError(f"The encoder answered {answer.status}: {answer.text[:300]}")


def good_request(stack: EcStack) -> Seen:
    """Have two pictures encoded, ask about them, and wait until the trace shows probe and transfer.

    Raises:
        StepError: a server did not answer 200, or the transfer was not seen.

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
    return _look(stack, answer, seconds, {"ec.probe", "ec.load"})


def waiting_request(stack: EcStack) -> Waited:
    """Ask about a picture whose transfer stands still for a while; meanwhile ask something else.

    Raises:
        StepError: it did not wait, or the other one did too.

    """
    question, other = Question.new(1), Question.new(0)
    encode(stack, question)
    labels = {"reason": "encoder_cache", "server": "language"}
    with ThreadPoolExecutor(1) as sender:
        stack.link.hold(_INTO_A_TRANSFER)
        try:
            sent = sender.submit(_timed, stack, question)
            until(lambda: stack.link.held, "No transfer has begun")
            answered = chat(stack.language.url, other.parts)
            until(
                lambda: stack.agent.metrics().value("penstock_deferred_requests", **labels) == 1,
                "penstock_deferred_requests does not show the request that waits",
            )
            metrics = stack.agent.metrics()
        finally:
            stack.link.release()
        answer, seconds = sent.result()
    if (answer.status, answered.status) != (HTTPStatus.OK, HTTPStatus.OK):
        raise StepError(f"The requests were answered {answer.status} and {answered.status} instead of 200.")
    gauges = ("penstock_deferred_requests", "penstock_transfers_in_flight")
    return Waited(
        _look(stack, answer, seconds, {"ec.probe", "penstock.deferral", "ec.load"}),
        answered,
        tuple(sample for name in gauges for sample in metrics.select(name, server="language")),
    )


def broken_request(stack: EcStack) -> tuple[Question, Seen]:
    """Ask about a picture and ``kill -9`` the encoder in the midst of its transfer.

    Raises:
        StepError: nothing was recorded about it.

    """
    question = Question.new(1)
    encode(stack, question)
    with ThreadPoolExecutor(1) as sender:
        stack.link.hold(_INTO_A_TRANSFER)
        try:
            sent = sender.submit(_timed, stack, question)
            until(lambda: stack.link.held, "No transfer has begun")
            stack.encoder.kill()
            answer, seconds = sent.result()
        finally:
            stack.link.release()
    return question, _look(stack, answer, seconds, {"ec.probe", "ec.load"}, question=question, failed=True)


def new_encoder(stack: EcStack) -> None:
    """Start another encoder in the place of the one that was killed.

    Raises:
        ChildError: it does not start.

    """
    stack.encoder.start().wait_ready()
    stack.link.lead_to(stack.encoder.port)


def encoded_here(stack: EcStack, question: Question) -> tuple[int, ...]:
    """Ask *question* again, of a language model that knows nothing and has no encoder; return the tokens."""
    forget_all(stack.language)
    return chat(stack.language.url, question.parts).tokens


def set_policy(stack: EcStack, action: str) -> Changed:
    """Set what the language model does about a failed load, and wait until the engine has it in force.

    Raises:
        StepError: the engine did not acknowledge, or the metrics say otherwise.

    """
    ran = stack.agent.ctl(
        *("set-policy", POLICY, "--selector", "tier=language", "--ec-load-failure", action),
        *("--reason", "INC-43: encoders die", "--wait"),
    )
    if ran.code != 0:
        raise StepError(f"{ran.line} ended with {ran.code}: {ran.output}")
    labels = {"server": "language", "channel": "ec", "action": action}
    until(
        lambda: stack.agent.metrics().value("penstock_policy_action", **labels) == 1,
        f"penstock_policy_action does not say {action} for the language model",
    )
    return Changed(ran, tuple(stack.agent.metrics().select("penstock_policy_action", **labels)))


def transfers(stack: EcStack) -> tuple[Sample, ...]:
    """Return what /metrics has about probes and transfers of the language model."""
    metrics = stack.agent.metrics()
    return (
        *metrics.select("penstock_cache_probes_total", server="language"),
        *metrics.select("penstock_transfers_total", **_received(stack)),
    )


def failures(stack: EcStack) -> tuple[Sample, ...]:
    """Return what /metrics has about failed loads and what was done about them."""
    metrics = stack.agent.metrics()
    names = ("penstock_transfer_failures_total", "penstock_load_outcomes_total")
    return tuple(s for name in names for s in metrics.select(name, server="language", channel="ec"))


def _received(stack: EcStack) -> dict[str, str]:
    return {"server": "language", "channel": "ec", "direction": "receive", "peer": stack.link.address}


def _timed(stack: EcStack, question: Question) -> tuple[Answer, float]:
    began = time.monotonic()
    answer = chat(stack.language.url, question.parts, headers={"X-Request-Id": question.name})
    return answer, time.monotonic() - began


def _look(
    stack: EcStack,
    answer: Answer,
    seconds: float,
    wanted: set[str],
    *,
    question: Question | None = None,
    failed: bool = False,
) -> Seen:
    """Wait until the agent has the trace with the *wanted* spans and the request's own, and the outcome if it *failed*."""
    name = question.name if question is not None else str(answer.body["id"])
    trace = until(
        lambda: _trace_with(stack, name, wanted), f"agentctl trace does not show {wanted} of {name}"
    )
    request_id = next(str(span["requestId"]) for span in trace["spans"] if span["name"] == "penstock.request")
    outcome = until(lambda: _outcome(stack, request_id), f"No outcome of {name}") if failed else {}
    spans = backend_spans(stack.agent, stack.receiver, request_id)
    return Seen(answer, request_id, trace["traceId"], outcome, spans, seconds)


def _trace_with(stack: EcStack, name: str, wanted: set[str]) -> dict[str, Any] | None:
    if stack.agent.ctl("trace", name).code != 0:
        return None
    trace: dict[str, Any] = stack.agent.ctl_json("trace", name)
    return trace if wanted | {"penstock.request"} <= {span["name"] for span in trace["spans"]} else None


def _outcome(stack: EcStack, request_id: str) -> dict[str, Any] | None:
    listed = stack.agent.ctl_json("get", "events", "--kind", "load_outcome", "--request", request_id)
    events: list[dict[str, Any]] = [entry["event"]["loadOutcome"] for entry in listed["events"]]
    return events[-1] if events else None
