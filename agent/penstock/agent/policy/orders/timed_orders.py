"""Orders that end by themselves: quarantines, fault drills, ejections; what holds of them when, and their stored form. Pure."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.agent.model import EngineKey
from penstock.agent.parsing import Selection, format_labels, parse_labels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.parsing import Target

MAX_QUARANTINE = timedelta(hours=24)
MAX_DRILL = timedelta(hours=1)
MAX_DELAY = timedelta(seconds=60)
MAX_EJECTION = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Fields of all orders; immutable.

    Attributes:
        id: unique over restarts; identifies the order in the engine.
        selection: the engines, present and future.
        began_unix_nano: by the agent's clock, as all times here; both follow it when it is set.

    """

    id: str
    selection: Selection
    author: str
    reason: str
    began_unix_nano: int
    ends_unix_nano: int

    def left_nano(self, now_unix_nano: int) -> int:
        """Return the remaining nanoseconds, from 0 to the whole time to live, even if the clock is set back."""
        whole = self.ends_unix_nano - self.began_unix_nano
        return max(0, min(self.ends_unix_nano - now_unix_nano, whole))


T = TypeVar("T", bound=Order)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineOrder(Order):
    """Quarantines *peer* (``host:port``), or exempts it from quarantine."""

    peer: str
    quarantined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultDrill(Order):
    """Injects faults into loads.

    Attributes:
        channel: ``Channel`` of the wire.
        mode: ``FailureMode`` of the wire; unspecified makes transfers slow by *delay_nano*.
        rate: share of attempts to hit, in (0, 1].
        peer: only transfers with it; empty for all.

    """

    channel: int
    mode: int
    rate: float
    peer: str = ""
    delay_nano: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ejection(Order):
    """Takes a server out of rotation: its front ends answer 503 for their readiness.

    Attributes:
        server: its name; empty where a pod has one.

    """

    server: str


def moved(found: Iterable[T], step: float) -> list[T]:
    """Return orders by a clock that was set forward by *step* seconds; negative: back."""
    nano = int(step * 1e9)
    return [
        dataclasses.replace(
            order, began_unix_nano=order.began_unix_nano + nano, ends_unix_nano=order.ends_unix_nano + nano
        )
        for order in found
    ]


def running(found: Iterable[T], now_unix_nano: int) -> list[T]:
    """Return the orders that have not ended."""
    return [order for order in found if order.left_nano(now_unix_nano)]


def drills_for(drills: Iterable[FaultDrill], target: Target, now_unix_nano: int) -> tuple[FaultDrill, ...]:
    """Return the running drills of *target*, oldest first."""
    return tuple(drill for drill in running(drills, now_unix_nano) if drill.selection.matches(target))


def quarantines_for(
    orders: Iterable[QuarantineOrder], target: Target, now_unix_nano: int
) -> tuple[QuarantineOrder, ...]:
    """Return the orders in force in *target*: the newest about each peer, if it has not ended.

    An older order does not return when the newer one ends.
    """
    newest: dict[str, QuarantineOrder] = {}
    for order in orders:
        if order.selection.matches(target):
            # Moved to the end, so that a replaced order does not affect the sequence.
            newest.pop(order.peer, None)
            newest[order.peer] = order
    return tuple(order for order in newest.values() if order.left_nano(now_unix_nano))


def kept(orders: Iterable[QuarantineOrder], now_unix_nano: int) -> list[QuarantineOrder]:
    """Drop the orders without effect.

    Those are: orders replaced by a newer one about the same engines and peer, and ended ones, unless they override
    an older one that has not ended.
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
    """Return the canonical JSON text of an order, as stored and audited."""
    fields: dict[str, Any] = {field.name: getattr(order, field.name) for field in dataclasses.fields(order)}
    fields["selection"] = {
        "labels": format_labels(order.selection.requirements),
        "models": list(order.selection.models),
        "engines": sorted(order.selection.keys),
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def read_quarantine(text: str) -> QuarantineOrder:
    """Parse the text of :func:`document`.

    Raises:
        ValueError, KeyError, TypeError: the text is of another version.

    """
    return QuarantineOrder(**_fields(text))


def read_drill(text: str) -> FaultDrill:
    """Parse the text of :func:`document`; raises as :func:`read_quarantine`."""
    return FaultDrill(**_fields(text))


def read_ejection(text: str) -> Ejection:
    """Parse the text of :func:`document`; raises as :func:`read_quarantine`."""
    return Ejection(**_fields(text))


def _fields(text: str) -> dict[str, Any]:
    fields = json.loads(text)
    selection = fields["selection"]
    fields["selection"] = Selection(
        requirements=parse_labels(selection["labels"]),
        models=tuple(selection["models"]),
        keys=frozenset(EngineKey(*key) for key in selection["engines"]),
    )
    return dict(fields)
