"""What the steps of all demos share: their error, polling with a deadline, the spans at the trace backend."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.common.agent import Agent
    from demo.common.otlp_receiver import Receiver, Span

# Longer than the 30 s for which prefill keeps blocks for a reader, whose span ends only then, on a busy machine too.
_SEEN_SECONDS = 120.0
_POLL_SECONDS = 0.1
PROMPT = "A penstock is the gate and gauge at the head of a channel: it measures the flow. "

_T = TypeVar("_T")


class StepError(RuntimeError):
    """A step had an unexpected result; the text is a sentence."""


def until(
    look: Callable[[], _T | None], complaint: str | Callable[[], str], seconds: float = _SEEN_SECONDS
) -> _T:
    """Call *look* every 0.1 s until its result is true; return the result.

    Raises:
        StepError: no true result within *seconds*; *complaint*, or its result, says what is missing.

    """
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            said = complaint if isinstance(complaint, str) else complaint()
            raise StepError(f"{said}, {seconds:.0f} s later.")
        time.sleep(_POLL_SECONDS)
    return seen


def backend_spans(agent: Agent, receiver: Receiver | None, request_id: str) -> tuple[Span, ...]:
    """Wait until the demo's backend has all spans that agentctl shows for a request; return them.

    Returns nothing for a foreign backend. Each poll asks agentctl again: a span that is still open at first may end under
    another id.

    Raises:
        StepError: spans are still missing at the deadline.

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
