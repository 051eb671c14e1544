"""What is known of each live request, and the events made of it."""

from __future__ import annotations

from penstock.instrumentation.vllm.requests import outcomes
from penstock.instrumentation.vllm.requests.affected import Affected, Cause, UnreportedOutcome
from penstock.instrumentation.vllm.requests.observer import SchedulerObserver
from penstock.instrumentation.vllm.requests.open_deferrals import OpenDeferral
from penstock.instrumentation.vllm.requests.outcomes import MODE_WORDS
from penstock.instrumentation.vllm.requests.record import RequestRecord

__all__ = [
    "MODE_WORDS",
    "Affected",
    "Cause",
    "OpenDeferral",
    "RequestRecord",
    "SchedulerObserver",
    "UnreportedOutcome",
    "outcomes",
]
