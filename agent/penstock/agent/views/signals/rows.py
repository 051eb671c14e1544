"""The table of ``agentctl signals``: a row for each minute. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from penstock.agent.batch import GATES
from penstock.agent.views import text
from penstock.agent.views.peers import speed_words
from penstock.agent.views.signals.values import SlotValues, slot_values
from penstock.agent.views.tables import Table
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable

_MINUTE_NANO: Final = 60 * NANOS
_COUNTED: Final = (
    "requests",
    "failed",
    "recomputed",
    "first_tokens",
    "loads_in",
    "bytes_in",
    "loads_out",
    "bytes_out",
)
# Of a moment: the newest slot that tells of them has them.
_HAD: Final = ("queues", "running", "waiting", "held_blocks", "total_blocks")


def signal_rows(answer: admin.Signals, now: float) -> Table:
    """List the minutes of which something is known, the newest last; what is not known is ``-``."""
    rows = []
    for _, slots in groupby(answer.slots, key=lambda slot: slot.start_unix_nano // _MINUTE_NANO):
        found = list(slots)
        seconds = len(found) * (answer.slot_nano or 1) / NANOS
        values = slot_values(_together(found), seconds)
        rows.append((text.ago(found[0].start_unix_nano, now), *_cells(values)))
    return Table(
        (
            "BEGAN", "REQ/S", "TTFT-P50", "TTFT-P99", "LONGEST-GATE", "RUNNING", "WAITING",
            "IN", "OUT", "FAILED", "RECOMPUTED", "HELD", "LOADS-IN/S", "LOADS-OUT/S",
        ),
        rows,
        wide=2,
    )  # fmt: skip


def _together(slots: Iterable[admin.SignalSlot]) -> admin.SignalSlot:
    total = admin.SignalSlot()
    for slot in slots:
        for name in _COUNTED:
            setattr(total, name, min(getattr(total, name) + getattr(slot, name), (1 << 64) - 1))
        for gate in GATES:
            name = f"{gate}_nano"
            nano = getattr(total.gates, name) + getattr(slot.gates, name)
            setattr(total.gates, name, min(nano, (1 << 64) - 1))
        for bucket, count in slot.times.items():
            total.times[bucket] = min(total.times[bucket] + count, (1 << 64) - 1)
        if slot.queues:
            for name in _HAD:
                setattr(total, name, getattr(slot, name))
    return total


def _cells(values: SlotValues) -> tuple[str, ...]:
    return (
        f"{values.requests:.3g}",
        *(_seconds(each) for each in (values.ttft_p50, values.ttft_p99)),
        _longest(values),
        *(text.NONE if each is None else f"{each:.0f}" for each in (values.running, values.waiting)),
        *(text.NONE if each is None else speed_words(each) for each in (values.bytes_in, values.bytes_out)),
        *(
            text.NONE if each is None else f"{each:.1%}"
            for each in (values.failed, values.recomputed, values.held)
        ),
        *(f"{each:.3g}" for each in (values.loads_in, values.loads_out)),
    )


def _longest(values: SlotValues) -> str:
    known = {gate: seconds for gate, seconds in values.gates.items() if seconds}
    longest = max(known, key=lambda gate: known[gate], default="")
    return f"{longest} {text.span_of_time(known[longest])}" if longest else text.NONE


def _seconds(value: float | None) -> str:
    return text.NONE if value is None else text.span_of_time(value)
