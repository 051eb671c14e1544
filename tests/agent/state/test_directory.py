"""The state directory: its permissions, its owner, and what stands in for one that cannot be written."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import structlog
from penstock.agent.errors import StateError, TakenError, UnwritableError
from penstock.agent.journal.database.schema import DiskReserve
from penstock.agent.journal.journal import Journal
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.state import directory
from penstock.agent.state.budget import MIN_LIMIT
from penstock.agent.state.directory import StateDirectory, is_writable_by_others, prepare_directory
from penstock.agent.state.file_lock import Lock


def test_it_is_made_for_its_owner_alone(tmp_path):
    """It names requests and peers."""
    prepare_directory(tmp_path / "new" / "state")
    assert oct((tmp_path / "new" / "state").stat().st_mode & 0o777) == "0o700"


@pytest.mark.parametrize(
    ("before", "owner", "after"),
    [
        (0o700, True, 0o700),
        (0o755, True, 0o700),
        (0o777, True, 0o700),
        (0o770, True, 0o700),
        (0o2775, True, 0o2700),
        # A place like /tmp, which is for all; a volume of another user's.
        (0o1777, True, 0o1777),
        (0o777, False, 0o777),
        # As Kubernetes mounts a volume with fsGroup.
        (0o2770, False, 0o2770),
    ],
)
def test_one_that_is_there_is_taken_from_others(tmp_path, monkeypatch, before, owner, after):
    """They could read its names, remove its files, and put links there."""
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(before)
    if not owner:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert is_writable_by_others(path) == (after & 0o022 > 0)
    with structlog.testing.capture_logs() as logs:
        prepare_directory(path)
    assert oct(path.stat().st_mode & 0o7777) == oct(after)
    assert len(logs) == (before != 0o700)


def test_one_whose_mode_cannot_be_changed_is_used(tmp_path, monkeypatch):
    """On a file system without modes: a warning says so, at the root of a volume without alarm."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", _refuse)
    for mounted, level in ((False, "warning"), (True, "info")):
        monkeypatch.setattr(Path, "is_mount", lambda _, mounted=mounted: mounted)
        with structlog.testing.capture_logs() as logs:
            StateDirectory(tmp_path, MIN_LIMIT).release()
        assert [(each["log_level"], each["mode"]) for each in logs] == [(level, "0755")]
        assert "which the agent cannot take" in logs[0]["event"]


def _refuse(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(
    "name", ["lock", "reserve", "journal.db", "journal.db-wal", "journal.tmp", "policy.db", "policy-copy.db"]
)
def test_a_link_in_it_is_refused(tmp_path, name):
    """It would be followed: what is written there is another one's file."""
    target = tmp_path / "target"
    target.write_text("theirs")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / name).symlink_to(target)
    with pytest.raises(StateError, match=f"{name} is a symbolic link"):
        StateDirectory(tmp_path / "state", MIN_LIMIT)
    assert target.read_text() == "theirs"


def test_links_that_come_later_are_not_followed(tmp_path):
    """Those that the agent itself opens."""
    target = tmp_path / "target"
    for name in ("lock", "reserve", "journal.db", "policy.db"):
        (tmp_path / name).symlink_to(target)
    with pytest.raises(StateError, match="cannot be made"):
        Lock(tmp_path / "lock", "it")
    with pytest.raises(StateError, match="cannot be used"):
        PolicyDatabase.open(tmp_path)
    reserve = DiskReserve(tmp_path / "reserve", 4096)
    reserve.acquire()
    with pytest.raises(StateError, match="cannot be used"):
        Journal.open(tmp_path)
    assert not target.exists()


def test_links_beside_are_no_matter(tmp_path):
    """The directory may be reached by one, and others' names are theirs."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "other").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "state")
    StateDirectory(tmp_path / "link", MIN_LIMIT).release()


def test_it_is_claimed_anew(tmp_path):
    """After it was removed, or its lock alone; unless another agent was there first."""
    place = StateDirectory(tmp_path / "state", MIN_LIMIT)
    place.claim()
    shutil.rmtree(place.path)
    place.claim()
    (place.path / "lock").unlink()
    place.claim()
    with pytest.raises(TakenError):
        StateDirectory(place.path, MIN_LIMIT)
    (place.path / "lock").unlink()
    other = StateDirectory(place.path, MIN_LIMIT)
    with pytest.raises(TakenError, match="another penstock-agent owns --state-dir"):
        place.claim()
    other.release()
    place.release()


def test_it_is_left(tmp_path, monkeypatch):
    """For a substitute with the policies, once."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    place = StateDirectory(tmp_path / "state", MIN_LIMIT)
    (place.path / "policy.db").write_bytes(b"policies")
    place.leave(UnwritableError("the disk is full"))
    assert place.trouble.startswith(
        "the disk is full; free disk space there and restart the agent; until then"
    )
    assert sorted(path.name for path in place.path.iterdir()) == ["lock", "policy.db"]
    # The lock of the directory is free again.
    StateDirectory(tmp_path / "state", MIN_LIMIT).release()
    with pytest.raises(UnwritableError, match="so is this"):
        place.leave(UnwritableError("so is this"))
    place.release()
    assert not place.path.exists()


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
    """An unlocked substitute is deleted; one in use and foreign files stay."""
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
    monkeypatch.setattr(directory, "_PLACES", ("/proc",))
    with pytest.raises(StateError, match="there is no other place either"):
        StateDirectory(unwritable, MIN_LIMIT)
