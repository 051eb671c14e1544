"""What a worker tells the scheduler about the encoder outputs of a step: it travels as the EC connector's worker metadata.

vLLM pickles it in the worker, combines the ranks' with ``aggregate`` and hands it to the scheduler in
``ECConnectorOutput.ec_connector_worker_meta``. A connector that uses the field itself keeps its metadata as *inner*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """An item that one rank could not load and holds a placeholder for: ``FAILURE_MODE_*``, ``ERROR_TYPE_*``.

    *rehearsal*: a fault drill caused it.
    """

    item: str
    mode: int
    error_type: int
    rank: int = 0
    rehearsal: bool = False


@dataclass(frozen=True, slots=True)
class EcReport:
    """One step of one rank, or of several that were aggregated; *inner* is the connector's own metadata."""

    failures: tuple[ItemFailure, ...] = ()
    inner: Any = None

    def __bool__(self) -> bool:
        return True

    def aggregate(self, other: Any) -> EcReport:
        """Combine with another rank's; the connectors' own are combined by themselves."""
        theirs = other if isinstance(other, EcReport) else EcReport(inner=other)
        if self.inner is None or theirs.inner is None:
            inner = self.inner if theirs.inner is None else theirs.inner
        else:
            inner = self.inner.aggregate(theirs.inner)
        return EcReport(self.failures + theirs.failures, inner)


def failed_items(output: Any) -> dict[str, ItemFailure]:
    """Return the failures in an ``ECConnectorOutput`` by item, of several ranks' the first; none for None."""
    metadata = getattr(output, "ec_connector_worker_meta", None)
    found: dict[str, ItemFailure] = {}
    if isinstance(metadata, EcReport):
        for failure in metadata.failures:
            found.setdefault(failure.item, failure)
    return found
