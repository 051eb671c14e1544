"""What the steps of all demos share: their error, waiting for what they cause, the spans at the trace backend."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from demo.common.processes import children
from demo.common.progress import wait_for_others

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.common.agent import Agent
    from demo.common.otlp_receiver import Receiver, Span

_POLL_SECONDS = 0.1
PROMPT = "A penstock is the gate and gauge at the head of a channel: it measures the flow. "

_T = TypeVar("_T")


class StepError(RuntimeError):
    """A step had an unexpected result; the text is a sentence."""


def until(
    look: Callable[[], _T | None], complaint: str | Callable[[], str], seconds: float | None = None
) -> _T:
    """Call *look* every 0.1 s until its result is true; return the result.

    Goes on while there is :class:`~demo.common.progress.Patience` and no child of this process ends by itself, or exactly
    for *seconds*.

    Raises:
        StepError: no true result; *complaint*, or its result, says what is missing.

    """

    def said() -> str:
        return complaint if isinstance(complaint, str) else complaint()

    waiting = f"{complaint} yet; waiting" if isinstance(complaint, str) else "still waiting"
    wait, running = wait_for_others(), [child for child in children() if child.running]
    deadline = None if seconds is None else time.monotonic() + seconds
    while not (seen := look()):
        if deadline is not None:
            if time.monotonic() > deadline:
                raise StepError(f"{said()}, {seconds:.0f} s later.")
        elif over := wait.over(waiting):
            raise StepError(f"{said()}, after {over}.")
        elif ended := next((child for child in running if not child.running), None):
            raise StepError(f"{said()}, and {ended.ended()}")
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
