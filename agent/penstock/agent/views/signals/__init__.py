"""What engines did lately, as numbers of each slot and as rows of each minute."""

from __future__ import annotations

from penstock.agent.views.signals.rows import signal_rows
from penstock.agent.views.signals.values import SlotValues, slot_values

__all__ = ["SlotValues", "signal_rows", "slot_values"]
