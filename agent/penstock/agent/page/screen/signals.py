"""The signals of the last 15 minutes as columns that the page plots: rates, shares and quantiles of each slot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.agent.batch import GATES
from penstock.agent.metrics import BUCKETS, KEPT_SLOTS, SLOT_NANO, quantile

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1 import admin_pb2 as admin

_SECONDS: Final = SLOT_NANO / 1e9
_DIGITS: Final = 4


def signals_message(answer: admin.Signals, engine: str = "", *, whole: bool = True) -> dict[str, Any]:
    """Return what the page plots of *answer*: a column for each line, with null where a slot is not known.

    Args:
        engine: the one that it is about; empty for all together.
        whole: these are all slots of 15 minutes, and not only the newest.

    """
    last = answer.slots[-1].start_unix_nano if answer.slots else 0
    first = answer.slots[0].start_unix_nano if answer.slots else 0
    count = min((last - first) // SLOT_NANO + 1, KEPT_SLOTS) if answer.slots else 0
    begin = last - (count - 1) * SLOT_NANO if count else 0
    known = {(slot.start_unix_nano - begin) // SLOT_NANO: slot for slot in answer.slots}
    slots = [known.get(place) for place in range(count)]

    def column(value: Callable[[admin.SignalSlot], float | None]) -> list[float | None]:
        return [None if slot is None else _rounded(value(slot)) for slot in slots]

    def rate(name: str) -> list[float | None]:
        return column(lambda slot: getattr(slot, name) / _SECONDS)

    def gate(name: str) -> list[float | None]:
        return column(lambda slot: _ratio(getattr(slot.gates, f"{name}_nano") / 1e9, slot.first_tokens))

    def queued(name: str) -> list[float | None]:
        return column(lambda slot: getattr(slot, name) if slot.queues else None)

    return {
        "engine": engine,
        "from": begin // 1_000_000,
        "step": SLOT_NANO // 1_000_000,
        "whole": whole,
        "engines": answer.engines,
        "leftOut": answer.engines_left_out,
        "requests": rate("requests"),
        "ttftP50": column(lambda slot: _quantile(slot, 0.5)),
        "ttftP99": column(lambda slot: _quantile(slot, 0.99)),
        "gates": {name: gate(name) for name in GATES},
        "running": queued("running"),
        "waiting": queued("waiting"),
        "loadsIn": rate("loads_in"),
        "loadsOut": rate("loads_out"),
        "bytesIn": rate("bytes_in"),
        "bytesOut": rate("bytes_out"),
        "failed": column(lambda slot: _ratio(slot.failed, slot.requests)),
        "recomputed": column(lambda slot: _ratio(slot.recomputed, slot.requests)),
        "held": column(lambda slot: _ratio(slot.held_blocks, slot.total_blocks)),
    }


def _quantile(slot: admin.SignalSlot, ratio: float) -> float | None:
    counts = [slot.times.get(bucket, 0) for bucket in range(BUCKETS)]
    return quantile(counts, ratio) if any(counts) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _rounded(value: float | None) -> float | None:
    """Return a value with as many digits as a plot shows: it is sent to each tab."""
    if value is None or value == int(value):
        return value if value is None else int(value)
    return float(f"{value:.{_DIGITS}g}")
