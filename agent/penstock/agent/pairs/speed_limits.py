"""From which ratio on a pair is slow. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.proto.v1 import admin_pb2 as admin

SLOW_AGAINST_USUAL: Final = 0.25
"""Bytes/s now over the usual; PenstockTransferSlowerThanUsual has the same."""

SLOW_AGAINST_SIBLINGS: Final = 0.33
"""Bytes/s now over the median of the engine's other peers; PenstockTransferSlowerThanPeers has the same."""


def slowness(speed: admin.PairSpeed) -> str:
    """Return what a pair is slower than, ``usual`` or ``siblings``; empty if it is not slow, or not known to be."""
    if speed.HasField("usual_ratio") and speed.usual_ratio < SLOW_AGAINST_USUAL:
        return "usual"
    if speed.HasField("siblings_ratio") and speed.siblings_ratio < SLOW_AGAINST_SIBLINGS:
        return "siblings"
    return ""
