"""Orders in policy.db: durable, audited, bounded, with an end."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from penstock.agent.errors import FullError, NotFoundError, StateError
from penstock.agent.model import EngineKey
from penstock.agent.parsing.label_selector import Selection, Target
from penstock.agent.policy.orders import order_store, timed_orders
from penstock.agent.policy.orders.order_store import OrderStore
from penstock.agent.policy.orders.timed_orders import Ejection
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.policy.orders import SECOND, fault_drill, quarantine_order

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

_TARGET = Target(EngineKey("", "0"), "tiny", {})


@contextmanager
def _book(
    directory: Path, now: list[float], steady: list[float] | None = None
) -> Iterator[tuple[OrderStore, PolicyDatabase]]:
    database = PolicyDatabase.open(directory)
    try:
        yield OrderStore(database, clock=lambda: now[0], steady=lambda: (steady or now)[0]), database
    finally:
        database.close()


async def test_orders_outlive_the_agent_and_still_end(directory: Path) -> None:
    """After a restart orders keep their ends, and end."""
    now = [0.0]
    order, drill = quarantine_order(seconds=100), fault_drill(seconds=60)
    with _book(directory, now) as (book, _):
        await book.set_quarantine(order)
        await book.start_drill(drill)
    now[0] = 40.0
    with _book(directory, now) as (book, _):
        assert book.quarantines_for(_TARGET) == (order,)
        assert book.drills_for(_TARGET) == (drill,)
        assert drill.left_nano(book.now_unix_nano) == 20 * SECOND
        now[0] = 60.0
        assert (book.drills(), book.drills_for(_TARGET)) == ([], ())
        now[0] = 100.0
        assert (book.quarantines(), book.quarantines_for(_TARGET)) == ([], ())


@pytest.mark.parametrize("step", [-3_600, 3_600])
async def test_a_step_of_the_clock_makes_no_order_longer_or_shorter(directory: Path, step: int) -> None:
    """The steady clock decides; begin and end are told by the clock as it is now."""
    now, steady = [10_000.0], [50.0]
    with _book(directory, now, steady) as (book, _):
        began = int(now[0]) * SECOND
        await book.set_quarantine(quarantine_order(began=began, seconds=1_800))
        await book.start_drill(fault_drill(began=began, seconds=60))
        now[0], steady[0] = now[0] + step + 20, steady[0] + 20
        (quarantine,), (drill,) = book.quarantines_for(_TARGET), book.drills_for(_TARGET)
        assert quarantine.left_nano(book.now_unix_nano) == 1_780 * SECOND
        assert drill.left_nano(book.now_unix_nano) == 40 * SECOND
        assert quarantine.began_unix_nano == began + step * SECOND
        await book.set_quarantine(quarantine_order("q2", "q:1", began=book.now_unix_nano, seconds=1_800))
        now[0], steady[0] = now[0] - step + 40, steady[0] + 40
        assert book.drills_for(_TARGET) == ()
        now[0], steady[0] = now[0] + 1_740, steady[0] + 1_740
        assert [each.id for each in book.quarantines_for(_TARGET)] == ["q2"]


async def test_a_step_of_the_clock_while_an_order_is_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts for what is being written, too."""
    now, steady = [10_000.0], [50.0]
    with _book(directory, now, steady) as (book, database):
        transaction = database.transaction

        @contextmanager
        def stepping() -> Iterator[sqlite3.Connection]:
            with transaction() as connection:
                yield connection
            now[0] -= 3_600
            assert book.now_unix_nano == int(now[0]) * SECOND

        monkeypatch.setattr(database, "transaction", stepping)
        await book.set_quarantine(quarantine_order(began=10_000 * SECOND, seconds=1_800))
        (order,) = book.quarantines_for(_TARGET)
        assert order.left_nano(book.now_unix_nano) == 1_800 * SECOND
        assert order.ends_unix_nano == (10_000 + 1_800 - 3_600) * SECOND


async def test_every_order_is_in_the_audit_log(directory: Path) -> None:
    """The audit log has author, action, reason and order, the newest first."""
    with _book(directory, [0.0]) as (book, database):
        drill = fault_drill(reason="game day")
        await book.set_quarantine(quarantine_order())
        await book.set_quarantine(quarantine_order("q2", quarantined=False))
        await book.start_drill(drill)
        await book.stop_drill("d1", author="you")
        entries = await PolicyStore(database).changes("", 10)
        found = [(entry.change.action, entry.change.name, entry.change.author) for entry in entries]
        assert found == [
            ("drill-stop", "drill d1", "you"),
            ("drill-start", "drill d1", "me"),
            ("quarantine-lift", "peer p:5600", "me"),
            ("quarantine-add", "peer p:5600", "me"),
        ]
        assert [entry.change.reason for entry in entries] == ["", "game day", "INC-1", "INC-1"]
        assert timed_orders.read_drill(entries[0].change.old_manifest) == drill
        assert timed_orders.read_drill(entries[1].change.new_manifest) == drill


async def test_a_change_is_announced_once_it_holds(directory: Path) -> None:
    """Listeners are called after the commit, and not for a refused change."""
    with _book(directory, [0.0]) as (book, _):
        seen: list[int] = []
        end = book.subscribe(lambda: seen.append(len(book.drills())))
        await book.start_drill(fault_drill())
        await book.stop_drill("d1", author="me")
        with pytest.raises(NotFoundError, match="no drill 'd1' is running; 'agentctl drill list' lists them"):
            await book.stop_drill("d1", author="me")
        end()
        await book.start_drill(fault_drill())
        assert seen == [1, 0]


async def test_there_are_only_so_many(directory: Path) -> None:
    """Drills are limited to what an engine takes; an ended drill makes room."""
    now = [0.0]
    with _book(directory, now) as (book, _):
        for number in range(order_store.MAX_DRILLS):
            await book.start_drill(fault_drill(str(number)))
        with pytest.raises(FullError, match="16 fault drills are running; stop one first"):
            await book.start_drill(fault_drill("more"))
        now[0] = 60.0
        await book.start_drill(fault_drill("more", began=60 * SECOND))
        assert [drill.id for drill in book.drills()] == ["more"]


async def test_quarantine_orders_are_bounded_too(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quarantine orders are limited by peer; another order about a known peer is accepted."""
    monkeypatch.setattr(order_store, "MAX_QUARANTINES", 2)
    with _book(directory, [0.0]) as (book, _):
        for peer in ("p:1", "p:2", "p:2"):
            await book.set_quarantine(quarantine_order(peer, peer))
        with pytest.raises(FullError, match="2 quarantine orders are in force"):
            await book.set_quarantine(quarantine_order("more", "p:3"))
        assert [order.peer for order in book.quarantines()] == ["p:1", "p:2"]


async def test_orders_at_once_are_all_kept(directory: Path) -> None:
    """Concurrent orders are all stored."""
    with _book(directory, [0.0]) as (book, _):
        await asyncio.gather(*(book.start_drill(fault_drill(str(number))) for number in range(8)))
        assert {drill.id for drill in book.drills()} == set(map(str, range(8)))


async def test_what_cannot_be_written_did_not_happen(directory: Path) -> None:
    """A failed write raises; memory equals the disk."""
    with _book(directory, [0.0]) as (book, database):
        with database.transaction() as connection:
            connection.execute("DROP TABLE timed_order")
        with pytest.raises(StateError, match="cannot be written"):
            await book.start_drill(fault_drill())
        assert book.drills() == []


async def test_an_order_of_another_version_does_not_keep_the_agent_from_starting(directory: Path) -> None:
    """An unreadable order is skipped at the start; the others are loaded."""
    with _book(directory, [0.0]) as (book, database):
        await book.start_drill(fault_drill())
        with database.transaction() as connection:
            for text in (
                '{"id": "x"}',
                "[]",
                "{",
                timed_orders.document(fault_drill("y")).replace('"rate"', '"new"'),
            ):
                connection.execute("INSERT INTO timed_order (kind, document) VALUES ('drill', ?)", (text,))
            connection.execute("INSERT INTO timed_order (kind, document) VALUES ('later', '{}')")
    with _book(directory, [0.0]) as (book, _):
        assert [drill.id for drill in book.drills()] == ["d1"]


def _ejection(server: str, *, began: int = 0, seconds: int = 100) -> Ejection:
    return Ejection(
        id=f"e-{server}",
        selection=Selection(keys=frozenset({EngineKey(server, "0")})),
        author="me",
        reason="INC-7",
        began_unix_nano=began,
        ends_unix_nano=began + seconds * SECOND,
        server=server,
    )


async def test_a_server_out_of_rotation(directory: Path) -> None:
    """It is told for a minute at most, outlives a restart and other orders, ends by itself, by a newer one, and by its end."""
    now = [0.0]
    with _book(directory, now) as (book, database):
        await book.set_ejections([_ejection("a"), _ejection("b")], {"a", "b"}, author="me", reason="x")
        await book.start_drill(fault_drill(seconds=600))
        assert (book.seconds_out("a"), book.seconds_out("b"), book.seconds_out("")) == (60, 60, 0)
        entries = await PolicyStore(database).changes("", 3)
        assert [(entry.change.action, entry.change.name) for entry in entries][1:] == [
            ("eject", "engine b/0"),
            ("eject", "engine a/0"),
        ]
    now[0] = 55.5
    with _book(directory, now) as (book, database):
        assert (book.seconds_out("a"), book.ejection_of("a")) == (45, _ejection("a"))
        await book.set_ejections([], {"b"}, author="me", reason="")
        assert (book.seconds_out("a"), book.seconds_out("b")) == (45, 0)
        await book.set_ejections([], {"b", "c"}, author="me", reason="")
        last, before = await PolicyStore(database).changes("", 2)
        # What ends nothing is no change.
        assert (last.change.action, last.change.name, before.change.action) == (
            "eject-off",
            "engine b/0",
            "drill-start",
        )
        await book.set_ejections(
            [_ejection("a", began=int(55.5 * SECOND), seconds=10)], {"a"}, author="me", reason=""
        )
        assert book.seconds_out("a") == 10
        now[0] = 65.4
        assert book.seconds_out("a") == 1
        now[0] = 65.5
        assert (book.seconds_out("a"), book.ejections()) == (0, [])
        assert book.drills_for(_TARGET) != ()


async def test_servers_out_of_rotation_are_bounded(directory: Path) -> None:
    """Beyond the limit the order is refused, and nothing changes."""
    with _book(directory, [0.0]) as (book, _):
        names = [str(number) for number in range(257)]
        with pytest.raises(FullError, match="256 servers are out of rotation already"):
            await book.set_ejections([_ejection(name) for name in names], set(names), author="me", reason="")
        assert book.ejections() == []
