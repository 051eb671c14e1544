"""Gauges of how fast transfers are now, by channel and peer: of the ranks the one that is slowest against its usual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.metrics.catalogue import from_snapshots as c
from penstock.agent.metrics.gauges.label_sets import MIN
from penstock.proto.names import label
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.metrics.gauges.label_sets import GaugeSet
    from penstock.agent.metrics.latencies import PairKey, Speed
    from penstock.agent.model import EngineKey


def add_speeds(sheet: GaugeSet, key: EngineKey, speeds: Mapping[PairKey, Speed]) -> None:
    """Put the speeds of one engine; a ratio that is not known is absent."""
    for pair, speed in speeds.items():
        labels = (label(common.Channel, pair.channel), pair.peer)
        sheet.merge(MIN, c.THROUGHPUT, key, speed.now, *labels)
        if speed.ratio is not None:
            sheet.merge(MIN, c.THROUGHPUT_USUAL_RATIO, key, speed.ratio, *labels)
        if speed.siblings_ratio is not None:
            sheet.merge(MIN, c.THROUGHPUT_PEERS_RATIO, key, speed.siblings_ratio, *labels)
