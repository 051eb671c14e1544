"""Gauges of what should go on in an engine and does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.metrics.catalogue import from_snapshots as c
from penstock.agent.metrics.gauges.label_sets import MIN, add

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.agent.metrics.gauges.label_sets import GaugeSet
    from penstock.agent.model import EngineKey
    from penstock.agent.stalls import Stall


def add_stalls(sheet: GaugeSet, stalls: Mapping[EngineKey, Iterable[Stall]]) -> None:
    """Put the stalls of all engines into *sheet*."""
    for key, found in stalls.items():
        for stall in found:
            sheet.merge(add, c.STALLS, key, stall.count, stall.kind, stall.peer)
            sheet.merge(MIN, c.STALL_START, key, stall.since, stall.kind, stall.peer)
