"""Pauses in policy.db: durable, with an end."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from penstock.agent.errors import StateError
from penstock.agent.model import EngineKey
from penstock.agent.policy.orders import kill_switch
from penstock.agent.policy.orders.kill_switch import Pauses
from penstock.agent.policy.orders.order_store import OrderStore
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.policy.orders import SECOND, quarantine_order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

A, B = EngineKey("", "0"), EngineKey("", "1")


@contextmanager
def _pauses(
    directory: Path, now: list[float], steady: list[float] | None = None
) -> Iterator[tuple[Pauses, PolicyDatabase]]:
    database = PolicyDatabase.open(directory)
    try:
        yield Pauses(database, clock=lambda: now[0], steady=lambda: (steady or now)[0]), database
    finally:
        database.close()


async def _audit(database: PolicyDatabase) -> list[tuple[str, str, str, str]]:
    entries = await PolicyStore(database).changes("", 10)
    return [
        (each.change.action, each.change.name, each.change.author, each.change.reason) for each in entries
    ]


async def _pause(pauses: Pauses, seconds: float | None = 60.0) -> None:
    ttl = None if seconds is None else timedelta(seconds=seconds)
    await pauses.set([A], paused=True, author="me", which="engine 0", reason="INC-1", ttl=ttl)


async def test_a_pause_outlives_the_agent_and_still_ends(directory: Path) -> None:
    """After a restart a pause keeps its end; the end is in the audit log once."""
    now = [1000.0]
    with _pauses(directory, now) as (pauses, _):
        await _pause(pauses)
    now[0] = 1059.0
    with _pauses(directory, now) as (pauses, _):
        await pauses.end_due([A])
        order = pauses.of(A)
        assert order is not None
        assert (order.author, order.reason) == ("me", "INC-1")
        assert (order.began_unix_nano, order.ends_unix_nano) == (1000 * 10**9, 1060 * 10**9)
        assert pauses.ends_unix_nano(A) == order.ends_unix_nano
    now[0] = 2000.0
    with _pauses(directory, now) as (pauses, database):
        told: list[bool] = []
        pauses.subscribe(lambda: told.append(pauses.is_paused(A)))
        await pauses.end_due([A])
        await pauses.end_due([A])
        assert told == [False]
        assert pauses.ends_unix_nano(A) == 0
        assert await _audit(database) == [
            ("resume", "engine 0", "penstock-agent", "its time to live has ended"),
            ("pause", "engine 0", "me", "INC-1"),
        ]
    with _pauses(directory, now) as (pauses, _):
        assert not pauses.is_paused(A)


async def test_a_pause_without_a_ttl_lasts(directory: Path) -> None:
    """A pause without a TTL ends with a resume only."""
    now = [0.0]
    with _pauses(directory, now) as (pauses, _):
        await _pause(pauses, None)
        now[0] = 1e9
        await pauses.end_due([A])
        assert pauses.is_paused(A)


@pytest.mark.parametrize("step", [-3_600, 3_600])
async def test_a_step_of_the_clock_makes_no_pause_longer_or_shorter(directory: Path, step: int) -> None:
    """The steady clock decides; one without an end has none."""
    now, steady = [10_000.0], [50.0]
    with _pauses(directory, now, steady) as (pauses, _):
        await pauses.set([A], paused=True, author="me", which="0", ttl=timedelta(seconds=1_800))
        await pauses.set([B], paused=True, author="me", which="1")
        now[0], steady[0] = now[0] + step + 1_700, steady[0] + 1_700
        await pauses.end_due([A, B])
        assert pauses.ends_unix_nano(A) == int(now[0] + 100) * SECOND
        now[0], steady[0] = now[0] + 100, steady[0] + 100
        await pauses.end_due([A, B])
        assert (pauses.is_paused(A), pauses.is_paused(B)) == (False, True)


async def test_orders_and_pauses_do_not_remove_each_other(directory: Path) -> None:
    """Orders and pauses share a table and keep apart."""
    now = [0.0]
    with _pauses(directory, now) as (pauses, database):
        orders = OrderStore(database, clock=lambda: now[0], steady=lambda: now[0])
        await _pause(pauses)
        await orders.set_quarantine(quarantine_order(seconds=100))
        await _pause(pauses)
    with _pauses(directory, now) as (pauses, database):
        assert pauses.ends_unix_nano(A)
        assert len(OrderStore(database, clock=lambda: now[0], steady=lambda: now[0]).quarantines()) == 1


async def test_a_pause_of_an_older_agent_has_no_end(directory: Path) -> None:
    """A stored pause without an end, or with an unreadable one, has no end."""
    with _pauses(directory, [0.0]) as (pauses, database):
        await _pause(pauses)
        with database.transaction() as connection:
            connection.execute("""UPDATE timed_order SET document = '{"key": 1}'""")
    with _pauses(directory, [1e9]) as (pauses, _):
        await pauses.end_due([A])
        order = pauses.of(A)
        assert order is not None
        assert (order.author, order.ends_unix_nano) == ("", 0)


async def test_a_pause_ends_on_a_full_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine resumes at the pause's end; the audit entry follows once the disk has room."""
    now = [0.0]
    with _pauses(directory, now) as (pauses, database):
        await _pause(pauses)
        now[0] = 60.0

        def full() -> None:
            raise StateError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(database, "transaction", full)
            await pauses.end_due([A])
        assert not pauses.is_paused(A)
        assert [action for action, *_ in await _audit(database)] == ["pause"]
        await pauses.end_due([A])
        assert [action for action, *_ in await _audit(database)] == ["resume", "pause"]


async def test_the_task_ends_a_pause_that_is_ordered_while_it_waits(directory: Path) -> None:
    """The task sleeps until the first end and wakes at each change, by the real clock."""
    database = PolicyDatabase.open(directory)
    pauses = Pauses(database)
    ended = asyncio.Event()
    pauses.subscribe(lambda: None if pauses.is_paused(A) else ended.set())
    ending = asyncio.ensure_future(pauses.keep_ending(lambda: [A]))
    try:
        await _pause(pauses, 0.05)
        await asyncio.wait_for(ended.wait(), 60)
    finally:
        ending.cancel()
        await asyncio.wait({ending})
        database.close()


async def test_an_error_does_not_end_the_task(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task continues after an exception."""
    monkeypatch.setattr(kill_switch, "_TRY_AGAIN", 0.001)
    database = PolicyDatabase.open(directory)
    pauses = Pauses(database)
    await _pause(pauses, 0.05)
    ended = asyncio.Event()
    pauses.subscribe(lambda: None if pauses.is_paused(A) else ended.set())
    answers = iter([RuntimeError("a bug")])

    def engines() -> list[EngineKey]:
        for error in answers:
            raise error
        return [A]

    ending = asyncio.ensure_future(pauses.keep_ending(engines))
    try:
        await asyncio.wait_for(ended.wait(), 60)
    finally:
        ending.cancel()
        await asyncio.wait({ending})
        database.close()
