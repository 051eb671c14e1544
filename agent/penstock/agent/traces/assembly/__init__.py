"""From the journal to finished requests: what belongs together, when it is complete, what is sampled."""

from __future__ import annotations

from penstock.agent.traces.assembly.assembler import Assembler
from penstock.agent.traces.assembly.finished_requests import (
    EngineLoss,
    Segment,
    find_finished_request,
    split_segments,
)
from penstock.agent.traces.assembly.model import AssemblyLimits, Finished
from penstock.agent.traces.assembly.sampling import Sampler

__all__ = [
    "Assembler",
    "AssemblyLimits",
    "EngineLoss",
    "Finished",
    "Sampler",
    "Segment",
    "find_finished_request",
    "split_segments",
]
