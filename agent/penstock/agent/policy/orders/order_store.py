"""Operator orders: quarantine orders and fault drills, kept in ``policy.db`` over restarts with their end times.

An order always has an end. The orders of an engine depend only on all orders and the current time, so they are the
same after a restart.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from penstock.agent.aio import Listeners, to_completion
from penstock.agent.errors import FullError, NotFoundError
from penstock.agent.model import EngineKey
from penstock.agent.parsing import Selection, format_labels, parse_labels
from penstock.agent.policy.orders.kill_switch import KIND as PAUSE
from penstock.agent.policy.store import ClockSteps, audit, boot_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.agent.parsing import Target
    from penstock.agent.policy.store import Clock, PolicyDatabase

MAX_QUARANTINE = timedelta(hours=24)
MAX_DRILL = timedelta(hours=1)
MAX_DELAY = timedelta(seconds=60)
MAX_QUARANTINES = 256
# The engine's limit.
MAX_DRILLS = 16


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


def moved(found: Iterable[T], step: float) -> list[T]:
    """Return orders by a clock that was set forward by *step* seconds; negative: back."""
    nano = int(step * 1e9)
    return [
        dataclasses.replace(
            order, began_unix_nano=order.began_unix_nano + nano, ends_unix_nano=order.ends_unix_nano + nano
        )
        for order in found
    ]


def running(drills: Iterable[FaultDrill], now_unix_nano: int) -> list[FaultDrill]:
    """Return the running drills."""
    return [drill for drill in drills if drill.left_nano(now_unix_nano)]


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


def _fields(text: str) -> dict[str, Any]:
    fields = json.loads(text)
    selection = fields["selection"]
    fields["selection"] = Selection(
        requirements=parse_labels(selection["labels"]),
        models=tuple(selection["models"]),
        keys=frozenset(EngineKey(*key) for key in selection["engines"]),
    )
    return dict(fields)


_log = structlog.get_logger(__name__)

_QUARANTINE, _DRILL = "quarantine", "drill"


class OrderStore:
    """Quarantine orders and fault drills. Reads are from memory; listeners are called once a change is durable.

    The end of an order by time is not announced. A step of the time of day makes no time to live longer or shorter.
    """

    def __init__(
        self, database: PolicyDatabase, *, clock: Clock = time.time, steady: Clock = boot_seconds
    ) -> None:
        """Load the stored orders; *clock* gives seconds since the epoch, *steady* seconds that nothing sets."""
        self._database = database
        self._clock = clock
        self._steps = ClockSteps(clock, steady)
        # By all steps that were seen, seconds.
        self._moved = 0.0
        self._listeners = Listeners()
        self._turn = asyncio.Lock()
        with database.reading() as connection:
            rows = connection.execute("SELECT kind, document FROM timed_order ORDER BY number").fetchall()
        self._quarantines = _read(rows, _QUARANTINE, read_quarantine)
        self._drills = _read(rows, _DRILL, read_drill)

    @property
    def now_unix_nano(self) -> int:
        """The current time of the orders' clock, nanoseconds; the orders follow it if it was set."""
        if step := self._steps.look():
            self._moved += step
            self._quarantines = moved(self._quarantines, step)
            self._drills = moved(self._drills, step)
        return int(self._clock() * 1e9)

    def quarantines(self) -> list[QuarantineOrder]:
        """Return the quarantine orders, oldest first, including ended ones that still override older ones."""
        now = self.now_unix_nano
        return kept(self._quarantines, now)

    def drills(self) -> list[FaultDrill]:
        """Return the running drills, oldest first."""
        now = self.now_unix_nano
        return running(self._drills, now)

    def quarantines_for(self, target: Target) -> tuple[QuarantineOrder, ...]:
        """Return the quarantine orders in force in *target*."""
        now = self.now_unix_nano
        return quarantines_for(self._quarantines, target, now)

    def drills_for(self, target: Target) -> tuple[FaultDrill, ...]:
        """Return the running drills of *target*, which runs them if it allows faults."""
        now = self.now_unix_nano
        return drills_for(self._drills, target, now)

    async def set_quarantine(self, order: QuarantineOrder) -> None:
        """Add an order; it replaces older ones about its peer in the engines it selects.

        Raises:
            FullError: there are too many orders.
            StateError: the order could not be written; nothing changed.

        """
        async with self._turn:
            quarantines = kept([*self.quarantines(), order], self.now_unix_nano)
            if len(quarantines) > MAX_QUARANTINES:
                raise FullError(f"{MAX_QUARANTINES} quarantine orders are in force; wait until one has ended")
            change = audit.Change(
                author=order.author,
                action="quarantine-add" if order.quarantined else "quarantine-lift",
                name=f"peer {order.peer}",
                reason=order.reason,
                new_manifest=document(order),
            )
            await to_completion(self._write(quarantines, self.drills(), change))

    async def start_drill(self, drill: FaultDrill) -> None:
        """Start a drill.

        Raises:
            FullError: too many drills are running.
            StateError: the drill could not be written; nothing changed.

        """
        async with self._turn:
            drills = [*self.drills(), drill]
            if len(drills) > MAX_DRILLS:
                raise FullError(
                    f"{MAX_DRILLS} fault drills are running; stop one first (agentctl drill stop)"
                )
            change = audit.Change(
                author=drill.author,
                action="drill-start",
                name=f"drill {drill.id}",
                reason=drill.reason,
                new_manifest=document(drill),
            )
            await to_completion(self._write(self.quarantines(), drills, change))

    async def stop_drill(self, drill_id: str, *, author: str) -> FaultDrill:
        """Stop a drill before its time to live ends.

        Raises:
            NotFoundError: it is not running.
            StateError: the change could not be written; nothing changed.

        """
        async with self._turn:
            drills = self.drills()
            drill = next((item for item in drills if item.id == drill_id), None)
            if drill is None:
                raise NotFoundError(f"no drill {drill_id!r} is running; 'agentctl drill list' lists them")
            drills.remove(drill)
            change = audit.Change(
                author=author,
                action="drill-stop",
                name=f"drill {drill.id}",
                old_manifest=document(drill),
            )
            await to_completion(self._write(self.quarantines(), drills, change))
            return drill

    async def record_question(self, name: str, *, author: str, reason: str) -> None:
        """Write into the audit log that *author* asks an engine for its stacks; *name* is the engine's.

        Raises:
            StateError: it could not be written.

        """
        change = audit.Change(author=author, action="debug-stacks", name=name, reason=reason)

        def write() -> None:
            with self._database.transaction() as connection:
                audit.append(connection, change, int(self._clock() * 1e9))

        await to_completion(asyncio.to_thread(write))

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on the loop after every change; return a function that unsubscribes."""
        return self._listeners.add(callback)

    async def _write(
        self, quarantines: list[QuarantineOrder], drills: list[FaultDrill], change: audit.Change
    ) -> None:
        rows = [*_rows(_QUARANTINE, quarantines), *_rows(_DRILL, drills)]

        def write() -> None:
            with self._database.transaction() as connection:
                connection.execute("DELETE FROM timed_order WHERE kind <> ?", (PAUSE,))
                connection.executemany("INSERT INTO timed_order (kind, document) VALUES (?, ?)", rows)
                audit.append(connection, change, int(self._clock() * 1e9))

        moved_before = self._moved
        await asyncio.to_thread(write)
        step = self._moved - moved_before
        self._quarantines, self._drills = moved(quarantines, step), moved(drills, step)
        self._listeners.call()


def _read(rows: Iterable[tuple[str, str]], kind: str, read: Callable[[str], T]) -> list[T]:
    """Return the orders of a kind; skip those of another version, so that the agent starts."""
    found = []
    for row_kind, text in rows:
        if row_kind != kind:
            continue
        try:
            found.append(read(text))
        except (ValueError, KeyError, TypeError) as error:
            _log.warning(
                "an order of another version is skipped; order it again", kind=kind, error=repr(error)
            )
    return found


def _rows(kind: str, found: Sequence[Order]) -> list[tuple[str, str]]:
    return [(kind, document(order)) for order in found]
