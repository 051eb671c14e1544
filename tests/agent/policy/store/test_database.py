"""``policy.db``: damage, its copy, refusals."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from penstock.agent.errors import StateError
from penstock.agent.model import EngineKey
from penstock.agent.policy.manifest.manifest import parse_manifest
from penstock.agent.policy.orders.kill_switch import Pauses
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore
from penstock.agent.state.archive import count_damaged
from penstock.agent.state.directory import StateDirectory

from tests.support.agent.removed_files import HARMS

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = """
{"apiVersion": "penstock.dev/v1alpha1", "kind": "TransferPolicy", "metadata": {"name": "p"},
 "spec": {"selector": {}, "kvLoadFailure": {"action": "fail"}}}
"""


async def fill(directory: Path, *, copy: bool) -> None:
    """Store a policy and a pause."""
    database = PolicyDatabase.open(directory)
    await PolicyStore(database).apply(parse_manifest(MANIFEST), author="me")
    await Pauses(database).set([EngineKey("", "0")], paused=True, author="me", which="engine 0")
    if copy:
        database.copy()
    database.close()


def noise(path: Path) -> None:
    """Overwrite the file with noise."""
    path.write_bytes(os.urandom(20_000))


def cut(path: Path) -> None:
    """Truncate the file."""
    os.truncate(path, path.stat().st_size - 4096)


def without_a_table(path: Path) -> None:
    """Drop a table."""
    database = sqlite3.connect(path)
    database.execute("DROP TABLE policy")
    database.close()


def bad_page(path: Path) -> None:
    """Overwrite the page of the policies."""
    database = sqlite3.connect(path)
    (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'policy'").fetchone()
    database.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(os.urandom(4096))


def emptied(path: Path) -> None:
    """Truncate the file to zero bytes, which SQLite opens as a new database."""
    os.truncate(path, 0)


@pytest.mark.parametrize("harm", [noise, cut, without_a_table, bad_page, emptied, os.unlink])
async def test_policies_outlive_damage(tmp_path, harm):
    """The copy replaces a damaged or missing database; the audit log has the repair."""
    await fill(tmp_path, copy=True)
    harm(tmp_path / "policy.db")
    database = PolicyDatabase.open(tmp_path)
    assert "its copy of 20" in database.recovered
    store = PolicyStore(database)
    assert [policy.manifest.name for policy in store.policies()] == ["p"]
    assert Pauses(database).is_paused(EngineKey("", "0"))
    newest, *_ = await store.changes("", 10)
    assert (newest.change.action, newest.change.author) == ("recover", "penstock-agent")
    assert newest.change.reason == database.recovered
    assert count_damaged(tmp_path)["policy"] == int(harm is not os.unlink)
    database.close()
    with closing(PolicyDatabase.open(tmp_path)) as database:
        assert database.recovered == ""


async def test_a_write_ahead_log_without_its_database(tmp_path):
    """A stale write-ahead log is not applied to the copy."""
    await fill(tmp_path, copy=True)
    database = PolicyDatabase.open(tmp_path)
    await Pauses(database).set([EngineKey("", "0")], paused=False, author="me", which="engine 0")
    kept = (tmp_path / "policy.db-wal").read_bytes()
    database.close()
    (tmp_path / "policy.db").unlink()
    (tmp_path / "policy.db-wal").write_bytes(kept)
    database = PolicyDatabase.open(tmp_path)
    assert Pauses(database).is_paused(EngineKey("", "0"))
    database.close()


async def test_killed_while_the_copy_is_put_in_place(tmp_path, monkeypatch):
    """The next start repeats an interrupted repair."""
    await fill(tmp_path, copy=True)
    (tmp_path / "policy.db").unlink()

    def killed(_source: Path, target: Path) -> None:
        target.touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            PolicyDatabase.open(tmp_path)
    assert not (tmp_path / "policy.db").exists()
    database = PolicyDatabase.open(tmp_path)
    assert [policy.manifest.name for policy in PolicyStore(database).policies()] == ["p"]
    database.close()


@pytest.mark.parametrize(
    ("copy", "harm"),
    [(False, noise), (True, noise), (True, emptied)],
    ids=["no copy", "the copy is damaged too", "both are empty"],
)
async def test_without_a_copy_the_loss_is_reported(tmp_path, copy, harm):
    """Without a copy the agent starts empty and reports the loss."""
    await fill(tmp_path, copy=copy)
    for path in tmp_path.glob("*.db"):
        harm(path)
    database = PolicyDatabase.open(tmp_path)
    assert database.recovered.endswith(
        "there is no copy: all policies, pauses and their audit log are gone, set them again"
    )
    assert PolicyStore(database).policies() == ()
    database.close()


async def test_a_database_that_is_refused_is_closed(tmp_path, monkeypatch):
    """The disk breaks when the database is open and its first table is read: no connection is left."""
    opened = []

    def broken(connection: sqlite3.Connection) -> tuple[int, int]:
        opened.append(connection)
        raise sqlite3.OperationalError("disk I/O error")

    await fill(tmp_path, copy=False)
    monkeypatch.setattr("penstock.agent.policy.store.audit.trimmed", broken)
    with pytest.raises(StateError, match=r"cannot be used \(disk I/O error\)"):
        PolicyDatabase.open(tmp_path)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


async def test_a_copy_is_written_after_a_change_only(tmp_path):
    """The copy is written after a change, with mode 0600."""
    await fill(tmp_path, copy=True)
    path = tmp_path / "policy-copy.db"
    first = path.stat()
    assert oct(first.st_mode & 0o777) == "0o600"
    database = PolicyDatabase.open(tmp_path)
    database.copy()
    second = path.stat()
    database.copy()
    assert path.stat().st_ino == second.st_ino
    await Pauses(database).set(None, paused=False, author="me", which="all")
    database.copy()
    assert path.stat().st_ino != second.st_ino
    database.close()


async def test_a_copy_that_cannot_be_written(tmp_path):
    """The error has the path; the earlier copy stays."""
    await fill(tmp_path, copy=True)
    database = PolicyDatabase.open(tmp_path)
    (tmp_path / "policy-copy.tmp").mkdir()
    (tmp_path / "policy-copy.tmp" / "x").touch()
    with pytest.raises(StateError, match=r"policy-copy\.db cannot be written"):
        database.copy()
    database.close()


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
async def test_it_is_put_back(tmp_path, harm):
    """A database removed or replaced at run time is restored, with all acknowledged changes, before the next one."""
    place = StateDirectory(tmp_path / "state", 32 << 20)
    path = place.path / "policy.db"
    database = PolicyDatabase.open(place.path, claim=place.claim)
    pauses = Pauses(database)
    await PolicyStore(database).apply(parse_manifest(MANIFEST), author="me")
    harm(path)
    await pauses.set([EngineKey("", "0")], paused=True, author="me", which="engine 0")
    assert database.whereabouts.restored == 1
    await pauses.set([EngineKey("", "1")], paused=True, author="me", which="engine 1")
    killed = tmp_path / "killed"
    shutil.copytree(place.path, killed)
    database.close()
    place.release()
    for directory in (place.path, killed):
        database = PolicyDatabase.open(directory)
        assert database.recovered == ""
        assert [policy.manifest.name for policy in PolicyStore(database).policies()] == ["p"]
        assert all(Pauses(database).is_paused(EngineKey("", engine)) for engine in "01")
        database.close()
        assert len(list(directory.glob("state.corrupt-*"))) == HARMS[harm]


async def test_the_copy_is_put_back(tmp_path):
    """A removed copy and database are written again by the next copy."""
    (tmp_path / "state").mkdir()
    await fill(tmp_path / "state", copy=True)
    database = PolicyDatabase.open(tmp_path / "state")
    database.copy()
    for path in (tmp_path / "state").iterdir():
        path.unlink()
    database.copy()
    assert {"policy.db", "policy-copy.db"} <= {path.name for path in (tmp_path / "state").iterdir()}
    database.close()


async def test_it_cannot_be_put_back(tmp_path):
    """Changes are refused with the reason while the database cannot be written again."""
    (tmp_path / "state").mkdir()
    database = PolicyDatabase.open(tmp_path / "state")
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(
        StateError, match=r"policy\.db was removed while the agent ran and cannot be restored: "
    ):
        await Pauses(database).set(None, paused=True, author="me", which="all")
    with pytest.raises(StateError, match="cannot be restored: "):
        database.copy()
    (tmp_path / "state").mkdir()
    database.copy()
    database.close()


async def test_all_its_files_are_for_their_owner_alone(tmp_path):
    """The database, its copy and its write-ahead log have mode 0600."""
    database = PolicyDatabase.open(tmp_path)
    await Pauses(database).set(None, paused=True, author="me", which="all")
    files = sorted(tmp_path.glob("policy.db*"))
    assert [path.name for path in files] == ["policy.db", "policy.db-shm", "policy.db-wal"]
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
    database.close()


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE policy SET manifest = replace(manifest, 'recompute', 'recompyte')",
        "UPDATE policy SET manifest = 'x'",
        "UPDATE policy SET manifest = cast(x'ff' AS TEXT)",
        "UPDATE policy SET name = 'q'",
        "PRAGMA user_version = 66",
        "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = cast(x'ff00ff' AS TEXT) WHERE name = 'policy'",
    ],
)
async def test_what_no_agent_wrote_is_damage(tmp_path, harm):
    """Content that SQLite accepts and no agent wrote is damage: the copy is in force."""
    manifest = MANIFEST.replace("fail", "recompute")
    database = PolicyDatabase.open(tmp_path)
    await PolicyStore(database).apply(parse_manifest(manifest), author="me")
    database.copy()
    database.close()
    with closing(sqlite3.connect(tmp_path / "policy.db")) as connection:
        connection.executescript(harm)
    database = PolicyDatabase.open(tmp_path)
    assert "its copy of 20" in database.recovered
    (policy,) = PolicyStore(database).policies()
    assert policy.manifest.canonical == parse_manifest(manifest).canonical
    database.close()


async def test_another_version_is_no_damage(tmp_path):
    """A database of another version is refused, without a repair from the copy."""
    await fill(tmp_path, copy=True)
    for name in ("policy.db", "policy-copy.db"):
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.execute("PRAGMA user_version = 3")
    with pytest.raises(StateError, match="move the state directory away"):
        PolicyDatabase.open(tmp_path)
    assert count_damaged(tmp_path)["policy"] == 0
