"""The state directory: its permissions, its owner, and what stands in for one that cannot be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from penstock.agent import statedir
from penstock.agent.budget import MIN_LIMIT
from penstock.agent.errors import StateError, UnwritableError
from penstock.agent.statedir import StateDirectory, prepare


def test_it_is_made_for_its_owner_alone(tmp_path):
    """It names requests and peers."""
    prepare(tmp_path / "new" / "state")
    assert oct((tmp_path / "new" / "state").stat().st_mode & 0o777) == "0o700"


def test_one_that_is_a_file_is_refused(tmp_path):
    """So is one below a file: that is a mistake, no substitute is taken."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StateError, match="cannot be created") as caught:
            StateDirectory(path, MIN_LIMIT)
        assert not isinstance(caught.value, UnwritableError)


def test_one_that_is_owned_is_refused(tmp_path):
    """Until its owner lets go."""
    first = StateDirectory(tmp_path, MIN_LIMIT)
    with pytest.raises(StateError, match=f"another penstock-agent owns --state-dir {tmp_path}; stop it"):
        StateDirectory(tmp_path, MIN_LIMIT)
    first.release()
    StateDirectory(tmp_path, MIN_LIMIT).release()


@pytest.fixture
def unwritable(tmp_path, monkeypatch) -> Path:
    """Make a state directory that cannot be written. Root may write anywhere, so the system's answer is replaced."""
    path = tmp_path / "state"
    path.mkdir()
    (path / "policy.db").write_bytes(b"policies")
    (path / "journal.db").write_bytes(b"journal")
    monkeypatch.setattr(os, "access", lambda place, _: place != path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return path


def test_a_substitute(unwritable, tmp_path):
    """It has the policies, not the journal, and is gone with the agent."""
    place = StateDirectory(unwritable, 1 << 40)
    assert place.path.parent == tmp_path
    assert place.limit == MIN_LIMIT
    assert place.trouble.startswith(f"the state directory '{unwritable}' cannot be written; give --state-dir")
    assert place.trouble.endswith(f"are kept in {place.path} and are lost with the agent")
    assert sorted(path.name for path in place.path.iterdir()) == ["lock", "policy.db"]
    place.release()
    assert not place.path.exists()


def test_what_killed_agents_left_is_swept(unwritable, tmp_path):
    """A substitute that nobody has locked goes, one in use stays, and so does what is not ours to judge."""
    left = Path(tempfile.mkdtemp(prefix="penstock-volatile-", dir=tmp_path))
    (left / "lock").touch()
    without = Path(tempfile.mkdtemp(prefix="penstock-volatile-", dir=tmp_path))
    link = tmp_path / "penstock-volatile-link"
    link.symlink_to(unwritable)
    first = StateDirectory(unwritable, MIN_LIMIT)
    second = StateDirectory(unwritable, MIN_LIMIT)
    assert not left.exists()
    assert all(path.exists() for path in (without, link, first.path, second.path, unwritable / "journal.db"))
    second.release()
    first.release()


def test_no_place_at_all(unwritable, monkeypatch):
    """Then the agent cannot start."""
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.setattr(statedir, "_PLACES", ("/proc",))
    with pytest.raises(StateError, match="there is no other place either"):
        StateDirectory(unwritable, MIN_LIMIT)
