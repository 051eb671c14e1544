"""Operator orders: quarantines, fault drills and ejections, kept in ``policy.db`` over restarts with their end times.

An order always has an end. The orders of an engine depend only on all orders and the current time, so they are the
same after a restart.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from penstock.agent.aio import Listeners, to_completion
from penstock.agent.errors import FullError, NotFoundError
from penstock.agent.policy.orders.kill_switch import KIND as PAUSE
from penstock.agent.policy.orders.timed_orders import (
    Ejection,
    FaultDrill,
    Order,
    QuarantineOrder,
    document,
    drills_for,
    kept,
    moved,
    quarantines_for,
    read_drill,
    read_ejection,
    read_quarantine,
    running,
)
from penstock.agent.policy.store import ClockSteps, audit, boot_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from penstock.agent.parsing import Target
    from penstock.agent.policy.store import Clock, PolicyDatabase

MAX_QUARANTINES = 256
# The engine's limit.
MAX_DRILLS = 16
MAX_EJECTIONS = 256
EJECTION_LEASE_SECONDS: Final = 60
"""For how long a front end is told at once; the agent renews it."""

T = TypeVar("T", bound=Order)

_log = structlog.get_logger(__name__)

_QUARANTINE, _DRILL, _EJECTION = "quarantine", "drill", "ejection"


class OrderStore:
    """Quarantine orders, fault drills and ejections. Reads are from memory; listeners are called once a change is durable.

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
        self._ejections = _read(rows, _EJECTION, read_ejection)

    @property
    def now_unix_nano(self) -> int:
        """The current time of the orders' clock, nanoseconds; the orders follow it if it was set."""
        if step := self._steps.look():
            self._moved += step
            self._quarantines = moved(self._quarantines, step)
            self._drills = moved(self._drills, step)
            self._ejections = moved(self._ejections, step)
        return int(self._clock() * 1e9)

    def quarantines(self) -> list[QuarantineOrder]:
        """Return the quarantine orders, oldest first, including ended ones that still override older ones."""
        now = self.now_unix_nano
        return kept(self._quarantines, now)

    def drills(self) -> list[FaultDrill]:
        """Return the running drills, oldest first."""
        now = self.now_unix_nano
        return running(self._drills, now)

    def ejections(self) -> list[Ejection]:
        """Return the ejections in force, oldest first; one a server."""
        now = self.now_unix_nano
        return running(self._ejections, now)

    def ejection_of(self, server: str) -> Ejection | None:
        """Return the order that takes *server* out of rotation now; None for none."""
        return next((order for order in self.ejections() if order.server == server), None)

    def seconds_out(self, server: str) -> int:
        """Return for how long a front end of *server* is to be out of rotation from now on: at most a minute; 0 for not at all."""
        order = self.ejection_of(server)
        left = 0 if order is None else order.left_nano(self.now_unix_nano)
        return min(EJECTION_LEASE_SECONDS, -(-left // 10**9))

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
            await to_completion(self._write(change, quarantines=quarantines))

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
            await to_completion(self._write(change, drills=drills))

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
            await to_completion(self._write(change, drills=drills))
            return drill

    async def set_ejections(
        self, orders: Sequence[Ejection], servers: Collection[str], *, author: str, reason: str
    ) -> None:
        """Replace the ejections of *servers* by *orders*; none ends them. Each has its own line in the audit log.

        Raises:
            FullError: there are too many.
            StateError: the change could not be written; nothing changed.

        """
        async with self._turn:
            others = [order for order in self.ejections() if order.server not in servers]
            if len(others) + len(orders) > MAX_EJECTIONS:
                raise FullError(
                    f"{MAX_EJECTIONS} servers are out of rotation already; end one of these orders first"
                )
            ended = [order for order in self.ejections() if order.server in servers] if not orders else []
            changes = [
                audit.Change(author, "eject", _about(order), reason, new_manifest=document(order))
                for order in orders
            ]
            changes += [
                audit.Change(author, "eject-off", _about(order), reason, old_manifest=document(order))
                for order in ended
            ]
            if changes:
                await to_completion(self._write(*changes, ejections=[*others, *orders]))

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
        self,
        *changes: audit.Change,
        quarantines: list[QuarantineOrder] | None = None,
        drills: list[FaultDrill] | None = None,
        ejections: list[Ejection] | None = None,
    ) -> None:
        """Write *changes* and all orders, with what is given in place of the present ones."""
        quarantines = self.quarantines() if quarantines is None else quarantines
        drills = self.drills() if drills is None else drills
        ejections = self.ejections() if ejections is None else ejections
        rows = [*_rows(_QUARANTINE, quarantines), *_rows(_DRILL, drills), *_rows(_EJECTION, ejections)]

        def write() -> None:
            with self._database.transaction() as connection:
                connection.execute("DELETE FROM timed_order WHERE kind <> ?", (PAUSE,))
                connection.executemany("INSERT INTO timed_order (kind, document) VALUES (?, ?)", rows)
                for change in changes:
                    audit.append(connection, change, int(self._clock() * 1e9))

        moved_before = self._moved
        await asyncio.to_thread(write)
        step = self._moved - moved_before
        self._quarantines, self._drills = moved(quarantines, step), moved(drills, step)
        self._ejections = moved(ejections, step)
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


def _about(order: Ejection) -> str:
    """Return the engines of an ejection, for the audit log."""
    return f"engine {', '.join(map(str, sorted(order.selection.keys)))}"


def _rows(kind: str, found: Sequence[Order]) -> list[tuple[str, str]]:
    return [(kind, document(order)) for order in found]
