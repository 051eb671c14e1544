"""Backups that are refused or fail leave nothing behind."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.agent.admin.calls.status import write_backup
from penstock.agent.errors import ImpossibleError, StateError
from penstock.agent.journal.journal import Journal
from penstock.agent.policy.store.database import PolicyDatabase

from tests.faults.bench import FaultyAgent
from tests.support.agent.agent import short_directory, wait_until


@pytest.fixture
async def state(tmp_path):
    """Return a state directory in use."""
    journal = Journal.open(tmp_path / "state")
    database = PolicyDatabase.open(tmp_path / "state")
    yield tmp_path / "state"
    database.close()
    await journal.close()


async def test_places_that_are_none(state, tmp_path):
    """Each is one sentence that says what to give instead."""
    (tmp_path / "file").touch()
    for target, sentence in (
        (Path("relative"), "is not an absolute path"),
        (tmp_path / "file", "exists already"),
        (tmp_path / "nowhere" / "x", "is not a directory"),
    ):
        with pytest.raises(ImpossibleError, match=sentence):
            write_backup(state, target)


async def test_half_a_backup_is_none(state, tmp_path):
    """Without the policies there is nothing at the target, and nothing beside it."""
    (state / "policy.db").rename(state / "elsewhere")
    with pytest.raises(StateError, match="could not be written: unable to open database file"):
        write_backup(state, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    (state / "elsewhere").rename(state / "policy.db")
    assert write_backup(state, tmp_path / "copy") > 0
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["journal.db", "policy.db"]


async def test_a_backup_that_is_stopped(state, tmp_path, monkeypatch):
    """It says so, and leaves nothing behind."""
    monkeypatch.setattr("penstock.agent.admin.calls.status._PAGES", 1)
    asked = iter([False, False])
    with pytest.raises(ImpossibleError, match="the agent is stopping; the backup was cancelled"):
        write_backup(state, tmp_path / "copy", lambda: next(asked, True))
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


async def test_commits_between_its_steps(state, tmp_path, monkeypatch):
    """They neither begin it anew nor are they in it: each database is as it was at one moment."""
    monkeypatch.setattr("penstock.agent.admin.calls.status._PAGES", 1)
    database = sqlite3.connect(state / "policy.db", isolation_level=None)
    database.execute("CREATE TABLE seen (step INTEGER)")
    steps: list[int] = []

    def commit() -> bool:
        steps.append(len(steps))
        database.execute("INSERT INTO seen VALUES (?)", steps[-1:])
        return len(steps) > 1_000

    write_backup(state, tmp_path / "copy", commit)
    database.close()
    copy = sqlite3.connect(tmp_path / "copy" / "policy.db")
    (seen,) = copy.execute("SELECT count(*) FROM seen").fetchone()
    assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    copy.close()
    # The first database's steps were before its moment, its own were not.
    assert 0 < seen < len(steps)


def test_sigterm_does_not_wait_for_a_backup():
    """The agent cancels the backup and drains; the caller gets the reason."""
    with short_directory() as directory:
        agent = FaultyAgent(directory)
        agent.fault = "slow-backup 1"
        agent.launch()
        try:
            agent.wait_ready()
            target = directory / "copy"
            with subprocess.Popen(
                [
                    sys.executable, "-m", "penstock.agent", "backup", str(target),
                    f"--admin-listen={agent.admin}",
                    f"--state-dir={agent.state_dir}",
                ],
                stderr=subprocess.PIPE,
                text=True,
            ) as asking:  # fmt: skip
                wait_until(lambda: list(directory.glob(".copy.partial-*/*")), "the backup is under way", 60.0)
                assert agent.stop(signal.SIGTERM) == 0
                _, told = asking.communicate(timeout=60)
            assert asking.returncode == 2
            assert "the agent is stopping; the backup was cancelled" in told
            assert not list(directory.glob("*copy*"))
        finally:
            agent.stop()
