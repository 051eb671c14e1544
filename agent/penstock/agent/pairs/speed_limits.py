"""From which ratio on a pair is slow. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.limits import SLOW_SPEED_RATIO

if TYPE_CHECKING:
    from penstock.proto.v1 import admin_pb2 as admin


def slowness(speed: admin.PairSpeed) -> str:
    """Return what a pair is slower than, ``usual`` or ``siblings``; empty if it is not slow, or not known to be."""
    if speed.HasField("usual_ratio") and speed.usual_ratio < SLOW_SPEED_RATIO:
        return "usual"
    if speed.HasField("siblings_ratio") and speed.siblings_ratio < SLOW_SPEED_RATIO:
        return "siblings"
    return ""
