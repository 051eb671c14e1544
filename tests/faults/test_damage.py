"""Damaged states: a sample of the cases (``make chaos`` has all), and states that went back in time."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from penstock.agent.journal.database.stored_rows import parse_batch
from penstock.agent.journal.query.reader import Reader
from penstock.agent.sources.registry import Account

from tests.faults.bench import bench
from tests.faults.damage import Bench
from tests.faults.extent import DAMAGED
from tests.faults.spoil import Case
from tests.support.agent.agent import short_directory, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_APART = 1


@pytest.fixture(scope="module")
def left() -> Iterator[Bench]:
    """Have two agents leave a state behind."""
    with short_directory() as directory:
        yield Bench(directory)


def test_the_agent_starts_on_whatever_is_left(left):
    """No damage keeps it from starting, from serving, or from taking in what comes; most of the log is kept."""
    for seed in range(DAMAGED):
        left.run(Case.of(seed), apart=seed < _APART)
    assert left.outcomes["set aside 1 times"]
    assert sorted(left.kept)[len(left.kept) // 2] > 0.5


def entries_in(state_dir: Path) -> int:
    """Return how many entries of engines a journal accounts for."""
    account = Account()
    with Reader(state_dir / "journal.db") as reader:
        for logged in reader.batches(0, 1_000_000):
            account = account.plus(parse_batch(logged))
    return sum(account)


def test_what_was_acknowledged_and_is_gone_is_counted():
    """The state goes back by some seconds, as after a bad write-ahead log: each engine's greeting shows it, entry by entry."""
    with bench(1) as stand:
        agent = stand.agent
        stand.traffic()
        agent.kill()
        earlier = stand.directory / "earlier"
        shutil.copytree(agent.state_dir, earlier)
        agent.start()
        stand.traffic()
        agent.kill()
        # What the agent acknowledged last may still be on its way into the ledger; the next try to reach it comes after.
        stand.producers[0].command("streams")
        wait_until(lambda: len(stand.books()[0].streams) > 1, "the engine tries again")
        acknowledged = stand.acknowledged()
        shutil.rmtree(agent.state_dir)
        earlier.rename(agent.state_dir)
        lost = acknowledged - entries_in(agent.state_dir)
        assert lost > 0
        agent.start()
        wait_until(
            lambda: agent.metric("penstock_events_dropped_total", reason="agent_state_lost") == lost,
            f"{lost} lost entries counted",
        )
        # In a new epoch, from its first entry on.
        stand.traffic()
        agent.kill()
        agent.start()
        wait_until(
            lambda: agent.metric("penstock_events_dropped_total", reason="agent_state_lost") == lost,
            f"{lost} lost entries counted as before",
        )
