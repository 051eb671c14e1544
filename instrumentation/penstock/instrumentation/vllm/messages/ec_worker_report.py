"""What a worker reports about the encoder outputs of a step: it travels in ``ECConnectorOutput.ec_connector_worker_meta``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.instrumentation.vllm.messages.rank_report import RankReport


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
class CheckedItem:
    """An item that one rank was to compare with its producer's checksum.

    Attributes:
        mismatched: it differs.
        skipped: the time for the comparisons of a step was spent, so it was not compared.

    """

    item: str
    mismatched: bool
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class EcReport(RankReport[ItemFailure]):
    """One step of one rank, or of several that were aggregated.

    Attributes:
        checked: items that were to be compared with their producer's checksum.

    """

    checked: tuple[CheckedItem, ...] = ()


def failed_items(output: Any) -> dict[str, ItemFailure]:
    """Return the failures in an ``ECConnectorOutput`` by item, of several ranks' the first; none for None."""
    metadata = getattr(output, "ec_connector_worker_meta", None)
    found: dict[str, ItemFailure] = {}
    if isinstance(metadata, EcReport):
        for failure in metadata.failures:
            found.setdefault(failure.item, failure)
    return found


def checked_items(output: Any) -> tuple[CheckedItem, ...]:
    """Return what the ranks were to compare, from an ``ECConnectorOutput`` or None."""
    metadata = getattr(output, "ec_connector_worker_meta", None)
    return metadata.checked if isinstance(metadata, EcReport) else ()
