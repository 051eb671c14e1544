"""What should go on in an engine and does not, by what its processes report once a second. Pure."""

from __future__ import annotations

from penstock.agent.stalls.stall import KINDS, Limits, Stall, StallKind
from penstock.agent.stalls.watch import StallWatch

__all__ = ["KINDS", "Limits", "Stall", "StallKind", "StallWatch"]
