"""State of the trace export."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ExportStatus:
    """State of the trace export.

    Attributes:
        endpoint: empty if there is no export.
        error: why spans cannot be delivered at present; empty while all is well.
        low: the oldest batch of the log that the export still needs.
        exported: the last closing batch whose spans were all delivered.
        position: the last batch that was read.
        oldest_unexported_unix_nano: when the oldest batch with undelivered spans was received; 0 if there is none.
        spans_exported: since the agent's start.
        spans_refused: dropped because the backend refuses them.
        spans_sampled_out: left out by the sampling.
        skipped: requests, batches or parts of them without spans because of an internal error.
        given_up: requests whose spans were finished before their end, by the limit that they exceeded: ``age``,
            ``count`` or ``memory``.

    """

    endpoint: str = ""
    error: str = ""
    low: int = 0
    exported: int = 0
    position: int = 0
    oldest_unexported_unix_nano: int = 0
    spans_exported: int = 0
    spans_refused: int = 0
    spans_sampled_out: int = 0
    skipped: int = 0
    given_up: Mapping[str, int] = field(default_factory=dict)
