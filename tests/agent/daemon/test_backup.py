"""Backups that are refused or fail leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from penstock.agent.backup import back_up
from penstock.agent.errors import ImpossibleError, StateError
from penstock.agent.journal import Journal
from penstock.agent.policy import PolicyDatabase


@pytest.fixture
async def state(tmp_path) -> Path:
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
        (Path("relative"), "is no absolute path"),
        (tmp_path / "file", "is there already"),
        (tmp_path / "nowhere" / "x", "is no directory"),
    ):
        with pytest.raises(ImpossibleError, match=sentence):
            back_up(state, target)


async def test_half_a_backup_is_none(state, tmp_path):
    """Without the policies there is nothing at the target, and nothing beside it."""
    (state / "policy.db").rename(state / "elsewhere")
    with pytest.raises(StateError, match="could not be written: unable to open database file"):
        back_up(state, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    (state / "elsewhere").rename(state / "policy.db")
    assert back_up(state, tmp_path / "copy") > 0
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["journal.db", "policy.db"]
