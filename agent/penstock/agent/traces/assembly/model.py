"""Limits of the assembler, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from penstock.agent.traces.assembly.sampling import SamplingDecision
    from penstock.agent.traces.spans import RequestIdentity, Span


@dataclass(frozen=True, slots=True)
class AssemblyLimits:
    """Bounds of the assembler: nanoseconds, bytes, numbers.

    Attributes:
        grace_nano: how long after the closing batch the entries of other processes are waited for. A calm engine's
            processes send one batch a second, each at its own time (``ROUND`` in the instrumentation); the rest is for
            slow machines.
        long_deferral_nano: deferrals of this length are kept whatever the sample ratio is.
        max_age_nano: an unfinished request that is older than this is given up.
        max_pending: above this many requests, the oldest is given up.
        max_bytes: of memory, about, for all that is not finished; above it what is closed has no grace, and the oldest
            requests are given up.
        max_remembered: finished requests that are remembered for what comes late.
        max_remembered_bytes: of memory, about, for those.
        max_entries: of one request; what is above is counted on its span.

    """

    grace_nano: int = 3 * NANOS
    long_deferral_nano: int = int(limits.LONG_WAIT_SECONDS * NANOS)
    max_age_nano: int = 2 * 3600 * NANOS
    max_pending: int = 20_000
    max_bytes: int = 64 << 20
    max_remembered: int = 20_000
    max_remembered_bytes: int = 32 << 20
    max_entries: int = 512


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request whose spans are finished: what its late entries need of it.

    Attributes:
        open_batch: the batch whose grace is not over; what comes meanwhile was finished with that batch,
            before the walk began again. 0 if none is.
        open_for_nano: for how long it has been running.

    """

    identity: RequestIdentity
    decision: SamplingDecision
    open_batch: int = 0
    open_for_nano: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """Spans that were finished together.

    Attributes:
        closing_batch: the batch that closed them.
        first_batch: the oldest batch that holds an entry of theirs.
        closed_unix_nano: when the closing batch was received.
        sampled_out: how many spans the sampling left out.

    """

    closing_batch: int
    first_batch: int
    closed_unix_nano: int
    spans: tuple[Span, ...]
    sampled_out: int = 0
