"""The signals of the last 15 minutes as columns that the page plots, with null where a slot is not known. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.agent.batch import GATES
from penstock.agent.metrics import KEPT_SLOTS, SLOT_NANO
from penstock.agent.views.signals import slot_values
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.views.signals import SlotValues
    from penstock.proto.v1 import admin_pb2 as admin

_MILLI: Final = 1_000_000
# What a plot shows: it is sent to each tab.
_DIGITS: Final = 4


def signals_message(answer: admin.Signals, engine: str = "", *, whole: bool = True) -> dict[str, Any]:
    """Return what the page plots of *answer*: a column for each line.

    Args:
        answer: the slots.
        engine: the one that it is about; empty for all together.
        whole: these are all slots of 15 minutes, and not only the newest.

    """
    begin, slots = _in_a_row(answer)
    values = [None if slot is None else slot_values(slot, SLOT_NANO / NANOS) for slot in slots]

    def column(value: Callable[[SlotValues], float | None]) -> list[float | None]:
        return [None if each is None else _rounded(value(each)) for each in values]

    return {
        "engine": engine,
        "from": begin // _MILLI,
        "step": SLOT_NANO // _MILLI,
        "whole": whole,
        "engines": answer.engines,
        "leftOut": answer.engines_left_out,
        # Of how many engines each slot is known.
        "known": [None if slot is None else slot.engines for slot in slots],
        "requests": column(lambda each: each.requests),
        "ttftP50": column(lambda each: each.ttft_p50),
        "ttftP99": column(lambda each: each.ttft_p99),
        "gates": {gate: column(lambda each, gate=gate: each.gates[gate]) for gate in GATES},  # type: ignore[misc]
        "running": column(lambda each: each.running),
        "waiting": column(lambda each: each.waiting),
        "loadsIn": column(lambda each: each.loads_in),
        "loadsOut": column(lambda each: each.loads_out),
        "bytesIn": column(lambda each: each.bytes_in),
        "bytesOut": column(lambda each: each.bytes_out),
        "failed": column(lambda each: each.failed),
        "recomputed": column(lambda each: each.recomputed),
        "held": column(lambda each: each.held),
    }


def _in_a_row(answer: admin.Signals) -> tuple[int, list[admin.SignalSlot | None]]:
    """Return where the first slot begins, and each slot from there to the newest: None for one that is not there."""
    if not answer.slots:
        return 0, []
    last = answer.slots[-1].start_unix_nano
    count = min((last - answer.slots[0].start_unix_nano) // SLOT_NANO + 1, KEPT_SLOTS)
    begin = last - (count - 1) * SLOT_NANO
    known = {(slot.start_unix_nano - begin) // SLOT_NANO: slot for slot in answer.slots}
    return begin, [known.get(place) for place in range(count)]


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    return int(value) if value == int(value) else float(f"{value:.{_DIGITS}g}")
