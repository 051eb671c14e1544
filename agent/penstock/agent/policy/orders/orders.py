"""What an operator orders for a time: a word about a peer's quarantine, and a rehearsal of faults. Pure.

Unlike a policy an order always ends. Which orders an engine is to have follows from all of them and the
present alone, so that the same orders come out after a restart.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.agent.model import EngineKey
from penstock.agent.parsing import Selection, format_labels, parse_labels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.parsing import Target

MAX_QUARANTINE = timedelta(hours=24)
MAX_DRILL = timedelta(hours=1)
MAX_DELAY = timedelta(seconds=60)
MAX_QUARANTINES = 256
# What an engine takes; a rehearsal of more things at once tells nothing.
MAX_DRILLS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What all orders have; never changed, only ended.

    Attributes:
        id: unique over restarts; an engine knows an order again by it.
        selection: which engines, present and future.
        began_unix_nano: by the agent's clock, as all moments here.

    """

    id: str
    selection: Selection
    author: str
    reason: str
    began_unix_nano: int
    ends_unix_nano: int

    def left_nano(self, now_unix_nano: int) -> int:
        """Return the nanoseconds that are left, 0 at its end; never more than it began with, whatever clocks do."""
        whole = self.ends_unix_nano - self.began_unix_nano
        return max(0, min(self.ends_unix_nano - now_unix_nano, whole))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineOrder(Order):
    """Cut *peer* (``host:port``) off, or keep it out of quarantine."""

    peer: str
    quarantined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultDrill(Order):
    """A rehearsal.

    Attributes:
        channel: ``Channel`` of the wire.
        mode: ``FailureMode`` of the wire; unspecified makes transfers slow by *delay_nano*.
        rate: share of the attempts that are hit, in (0, 1].
        peer: only this one's; empty for all.

    """

    channel: int
    mode: int
    rate: float
    peer: str = ""
    delay_nano: int = 0


def running(drills: Iterable[FaultDrill], now_unix_nano: int) -> list[FaultDrill]:
    """Return the drills that have not ended."""
    return [drill for drill in drills if drill.left_nano(now_unix_nano)]


def drills_for(drills: Iterable[FaultDrill], target: Target, now_unix_nano: int) -> tuple[FaultDrill, ...]:
    """Return the drills that *target* is to run now, in the order in which they began."""
    return tuple(drill for drill in running(drills, now_unix_nano) if drill.selection.matches(target))


def quarantines_for(
    orders: Iterable[QuarantineOrder], target: Target, now_unix_nano: int
) -> tuple[QuarantineOrder, ...]:
    """Return what holds in *target* now: of all orders about a peer the newest, if it has not ended.

    An older one does not come back when the newer one ends: the operator has changed their mind about it.
    """
    newest: dict[str, QuarantineOrder] = {}
    for order in orders:
        if order.selection.matches(target):
            # Put last, so that what a newer one replaces leaves no trace in the order either.
            newest.pop(order.peer, None)
            newest[order.peer] = order
    return tuple(order for order in newest.values() if order.left_nano(now_unix_nano))


def kept(orders: Iterable[QuarantineOrder], now_unix_nano: int) -> list[QuarantineOrder]:
    """Leave out the orders that cannot matter any more.

    Those are: an order that a newer one about the same engines and peer replaces, and one that has ended, unless it
    still stands before an older one that has not.
    """
    found: list[QuarantineOrder] = []
    replaced: set[tuple[str, Selection]] = set()
    listed = list(orders)
    for index in range(len(listed) - 1, -1, -1):
        order = listed[index]
        key = (order.peer, order.selection)
        older = (other for other in listed[:index] if other.peer == order.peer)
        matters = order.left_nano(now_unix_nano) or any(other.left_nano(now_unix_nano) for other in older)
        if matters and key not in replaced:
            found.append(order)
        replaced.add(key)
    return found[::-1]


def document(order: Order) -> str:
    """Return the one JSON text that stands for an order: what is stored and audited."""
    fields: dict[str, Any] = {field.name: getattr(order, field.name) for field in dataclasses.fields(order)}
    fields["selection"] = {
        "labels": format_labels(order.selection.requirements),
        "models": list(order.selection.models),
        "engines": sorted(order.selection.keys),
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def read_quarantine(text: str) -> QuarantineOrder:
    """Read what :func:`document` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is of another version.

    """
    return QuarantineOrder(**_fields(text))


def read_drill(text: str) -> FaultDrill:
    """Read what :func:`document` wrote; raises what :func:`read_quarantine` does."""
    return FaultDrill(**_fields(text))


def _fields(text: str) -> dict[str, Any]:
    fields = json.loads(text)
    selection = fields["selection"]
    fields["selection"] = Selection(
        requirements=parse_labels(selection["labels"]),
        models=tuple(selection["models"]),
        keys=frozenset(EngineKey(*key) for key in selection["engines"]),
    )
    return dict(fields)
