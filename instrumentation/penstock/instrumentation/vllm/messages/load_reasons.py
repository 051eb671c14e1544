"""Why loads failed, where a connector's own code says more than the base interface, on the way from worker to scheduler."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.naming import Failure

REASONS_MAX: Final = 4_096
"""Reasons that wait for the scheduler's next step."""


class LoadReason(NamedTuple):
    """What one rank's connector knows about a failed load: ``FAILURE_MODE_*``, ``ERROR_TYPE_*``, class and text of the error."""

    request_id: str
    rank: int
    mode: int
    error_type: int
    error_class: str = ""
    error_text: str = ""


class LoadFailureReasons:
    """The reasons of one worker's connector: noted on any thread, drained on the worker's."""

    def __init__(self, rank: int) -> None:
        """Record what happens on *rank*."""
        self._rank = rank
        self._noted: deque[LoadReason] = deque()

    def __bool__(self) -> bool:
        return bool(self._noted)

    def note(self, request_id: str, failure: Failure) -> None:
        """Record why the load of a request failed, before the connector reports that it did."""
        if len(self._noted) >= REASONS_MAX:
            runtime.emitter.drops.add("queue_full", "event")
            return
        self._noted.append(
            LoadReason(
                request_id,
                self._rank,
                failure.mode,
                failure.error_type,
                failure.error_class,
                failure.error_text,
            )
        )

    def drain(self) -> tuple[LoadReason, ...]:
        """Return what was noted, once."""
        return tuple(self._noted.popleft() for _ in range(len(self._noted)))
