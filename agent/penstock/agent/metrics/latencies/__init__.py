"""How long transfers take, by peer and by window of time."""

from __future__ import annotations

from penstock.agent.metrics.latencies.peers import PeerLatencies, PeerWindows
from penstock.agent.metrics.latencies.windows import DurationWindow, DurationWindows

__all__ = ["DurationWindow", "DurationWindows", "PeerLatencies", "PeerWindows"]
