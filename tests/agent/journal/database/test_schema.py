"""The state directory and the schema's version."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from penstock.agent.errors import StateError
from penstock.agent.journal.database.schema import VERSION, create_schema
from penstock.agent.journal.journal import Journal
from penstock.proto.v1.ingest_pb2 import Batch


def test_an_empty_database_gets_the_schema_once():
    """A second call does not change the schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        create_schema(database)
        database.execute("UPDATE pruned SET batches = 7")
        create_schema(database)
        assert database.execute("SELECT batches FROM pruned").fetchall() == [(7,)]
        assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)


@pytest.mark.parametrize("version", [VERSION + 1, 68])
def test_another_version_is_refused(tmp_path, version):
    """Another schema version is refused and left unchanged; the error names the remedy."""
    Journal.open(tmp_path)._close()
    with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as database:
        database.execute(f"PRAGMA user_version = {version}")
        database.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (version,))
    with pytest.raises(
        StateError, match=rf"schema {version} and this agent reads schema 1 only; move the state directory"
    ):
        Journal.open(tmp_path)
    assert list(tmp_path.glob("state.*")) == []


async def test_the_database_of_another_program_is_set_aside(tmp_path):
    """It is moved like a damaged journal, unchanged."""
    database = sqlite3.connect(tmp_path / "journal.db")
    database.execute("CREATE TABLE meta (something_else)")
    database.close()
    await Journal.open(tmp_path).close()
    (place,) = tmp_path.glob("state.corrupt-*")
    with closing(sqlite3.connect(place / "journal.db")) as database:
        assert database.execute("SELECT name FROM sqlite_schema").fetchall() == [("meta",)]


async def test_the_state_remembers_its_beginning(tmp_path):
    """Creation time and the agent's epoch survive a restart."""
    first = Journal.open(tmp_path)
    await first.close()
    second = Journal.open(tmp_path)
    await second.close()
    assert (first.created_unix_nano, first.agent_epoch) == (second.created_unix_nano, second.agent_epoch)
    assert first.agent_epoch > 0


async def test_the_state_of_another_pod_is_put_aside(tmp_path, source):
    """Another pod gets a new journal; the old one stays readable beside it. An unknown pod keeps the journal."""
    journal = Journal.open(tmp_path, "pod-1")
    await journal.append(source, Batch(epoch=source.epoch, seq=1), b"")
    await journal.close()
    for pod in ("pod-1", ""):
        journal = Journal.open(tmp_path, pod)
        with journal.reader() as reader:
            assert reader.last() == 1
        await journal.close()
    journal = Journal.open(tmp_path, "pod-2")
    with journal.reader() as reader:
        assert reader.last() == 0
    await journal.close()
    (archive,) = tmp_path.glob("journal-*.db")
    database = sqlite3.connect(archive)
    assert database.execute("SELECT count(*) FROM batches").fetchone() == (1,)
    database.close()


async def test_the_state_is_its_owners_alone(tmp_path):
    """New and existing files get mode 0600: they name requests and peers."""
    (tmp_path / "journal.db").touch(0o644)
    journal = Journal.open(tmp_path)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {
        "journal.db": "0o600",
        "journal.db-wal": "0o600",
        "journal.db-shm": "0o600",
        "reserve": "0o600",
    }
    await journal.close()
