"""The write-ahead log is copied beside the writer."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading

from penstock.agent.journal.database import schema
from penstock.agent.journal.database.connection import WalCheckpointer, connect
from penstock.agent.journal.journal import Journal
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.agent import wait_until


def in_file(path, copy):
    """Return how many batches the database's file holds by itself, without its write-ahead log."""
    shutil.copy(path, copy)
    with contextlib.closing(sqlite3.connect(copy)) as database:
        try:
            return database.execute("SELECT count(*) FROM batches").fetchone()[0]
        except sqlite3.DatabaseError:
            return 0


async def test_what_is_committed_gets_into_the_file(tmp_path, source):
    """Commits reach the database file soon, not only when the write-ahead log is long."""
    journal = Journal.open(tmp_path)
    for seq in range(1, 6):
        batch = Batch(epoch=source.epoch, seq=seq)
        await journal.append(source, batch, batch.SerializeToString())
    wait_until(lambda: in_file(tmp_path / schema.FILE, tmp_path / "copy") == 5, "the batches are in the file")
    await journal.close()
    await journal.close()


async def test_a_small_journal_is_copied_by_its_writer(tmp_path):
    """With a small limit there is no checkpoint thread: the writer copies."""
    journal = Journal.open(tmp_path, limit=32 << 20)
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-checkpoint"]
    await journal.close()


def test_the_writer_waits_for_a_slow_checkpoint_only(tmp_path, monkeypatch):
    """The writer waits for a slow checkpoint, which bounds the write-ahead log, and not for a quick one."""
    made = WalCheckpointer(tmp_path / "none" / "journal.db")
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        made.between_transactions(database)
    monkeypatch.setattr("penstock.agent.journal.database.connection._PATIENCE_SECONDS", 0.0)
    made._turn.acquire()
    made._begun = 0.0
    waiting = threading.Thread(target=made.between_transactions, args=[None])
    waiting.start()
    assert waiting.is_alive()
    made._turn.release()
    waiting.join(60)
    assert not waiting.is_alive()
    made.close()


def test_a_log_begins_again_although_its_writer_never_pauses(tmp_path):
    """What was committed during the checkpoint of a long log the writer copies between two transactions; an error is no matter."""
    path = tmp_path / "journal.db"
    with contextlib.closing(connect(path)) as database, contextlib.closing(connect(path)) as beside:

        def commit():
            database.execute("INSERT INTO numbers VALUES (1)")

        def length():
            return database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]

        database.execute("CREATE TABLE numbers (number)")
        made = WalCheckpointer(tmp_path / "none" / "journal.db", long_pages=20)
        made.close()
        commit()
        made._copy(beside)
        assert not made._rest_is_left  # short
        for _ in range(20):
            commit()
        made._copy(beside)
        commit()
        made.between_transactions(database)
        commit()
        assert length() < 5
        made._rest_is_left = True
    made.between_transactions(database)  # closed
