"""What goes on in this process now: counts, calls that have not returned, threads. A reader sees by it what does not go on."""

from __future__ import annotations

from penstock.instrumentation.vllm.progress.open_calls import (
    ConnectorCalls,
    RequestCounts,
    SchedulerSteps,
    connector_threads,
)

__all__ = ["ConnectorCalls", "RequestCounts", "SchedulerSteps", "connector_threads"]
