"""An upgrade that is interrupted: the database is whole, of one version or the next, and the next start goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.agent.journal import schema
from penstock.agent.journal.connection import connect
from penstock.agent.journal.journal import Journal
from penstock.agent.model import EngineKey, Source
from penstock.agent.policy.store import database as policies
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import deferral_start

SOURCE = Source(epoch=7, key=EngineKey("", "0"), process="engine-core")
BATCHES = 500

# A child that upgrades the database, and is killed when SQLite has taken so many steps of its virtual machine.
CHILD = """
import os, signal, sys
from pathlib import Path
from penstock.agent.journal import schema
path, left = Path(sys.argv[1]), int(sys.argv[2])
def passed():
    global left
    left -= 1
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0
database = schema.connect(path)
database.set_progress_handler(passed, 50)
schema.migrate(database)
"""


def old_database(directory: Path) -> Path:
    """Write a journal of the first schema with many batches."""
    directory.mkdir()
    path = directory / "journal.db"
    database = connect(path)
    schema.migrate(database, schema.MIGRATIONS[:1])
    batches = [Batch(epoch=7, seq=seq, events=[deferral_start("r")]) for seq in range(1, BATCHES + 1)]
    database.execute("BEGIN")
    database.executemany(
        "INSERT INTO batches (epoch, seq, received_unix_nano, body) VALUES (7, ?, 5, ?)",
        [(batch.seq, batch.SerializeToString()) for batch in batches],
    )
    for epoch in range(1, 200):
        database.execute(
            "INSERT INTO sources VALUES (?, x'', '', '0', 'worker', ?, 5, 5, NULL)",
            (epoch, BATCHES if epoch == 7 else 0),
        )
    database.executemany("INSERT INTO events VALUES (18, ?, 0, 9)", [(seq,) for seq in range(1, BATCHES + 1)])
    database.executemany("INSERT INTO requests VALUES ('r', ?)", [(seq,) for seq in range(1, BATCHES + 1)])
    database.execute("INSERT INTO open_deferrals VALUES (7, 'r', 1, x'')")
    database.execute("COMMIT")
    database.close()
    return path


def upgrade(path: Path, steps: int) -> int:
    """Run the child; returns its exit code."""
    return subprocess.run([sys.executable, "-c", CHILD, str(path), str(steps)], check=False).returncode


async def test_killed_in_the_middle_of_an_upgrade(tmp_path):
    """At many places: each leaves a version complete, and nothing of the next one."""
    seen = set()
    for number, steps in enumerate((1, 4, 16, 24, 32, 40, 48, 64, 300, 600, 900, 1_000, 1_000_000)):
        path = old_database(tmp_path / str(number))
        code = upgrade(path, steps)
        assert code in (0, -signal.SIGKILL)
        database = sqlite3.connect(path)
        (version,) = database.execute("PRAGMA user_version").fetchone()
        columns = {row[1] for row in database.execute("PRAGMA table_info(sources)")}
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert ("last_batch" in columns, "pruned" in tables) == (version >= 2,) * 2
        assert ("kinds" in tables, "events" in tables) == (version >= 3, version < 3)
        assert ("runs" in tables, "requests" in tables) == (version >= 4, version < 4)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()
        seen.add((code, version))
        journal = Journal.open(path.parent)
        assert await journal.open_source(SOURCE) == BATCHES
        with journal.reader() as reader:
            assert (reader.first(), reader.last()) == (1, BATCHES)
            assert len(reader.request_batches("r")) == BATCHES
            assert len(list(reader.scan(kinds=["deferral_start"], limit=2 * BATCHES))) == BATCHES
        assert await journal.append(SOURCE, Batch(epoch=7, seq=BATCHES + 1), b"") == BATCHES + 1
        await journal.close()
    assert {(-signal.SIGKILL, 1), (-signal.SIGKILL, 2), (-signal.SIGKILL, 3), (0, 4)} <= seen


def test_an_upgrade_sorts_beside_the_database(tmp_path):
    """The root of a container may be read-only, and have no /tmp."""
    database = connect(tmp_path / "journal.db")
    schema.migrate(database, schema.MIGRATIONS[:3])
    database.execute("BEGIN")
    database.executemany(
        "INSERT INTO requests VALUES (?, ?)", ((key, key * 7 % 1000 + 1) for key in range(150_000))
    )
    database.execute("COMMIT")
    seen = set()

    def look() -> int:
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                seen.add(str(link.readlink()))
        return 0

    database.set_progress_handler(look, 20_000)
    schema.migrate(database)
    assert database.execute("SELECT count(*), sum(length(keys)) FROM recent").fetchone() == (1000, 600_000)
    database.close()
    places = {Path(name).parent for name in seen if "etilqs_" in name}
    assert places == {tmp_path}


@pytest.mark.parametrize("module", [schema, policies])
def test_a_start_that_is_killed_while_it_creates(tmp_path, module):
    """A first start that ends in the middle leaves nothing that the second one stumbles over."""
    opened = {
        schema: f"from penstock.agent.journal.schema import open_database as o; o(Path({str(tmp_path)!r}), '', 1 << 30)",
        policies: f"from penstock.agent.policy.store.database import PolicyDatabase; PolicyDatabase.open(Path({str(tmp_path)!r}))",
    }[module]
    code = (
        "import os, signal, sqlite3; from pathlib import Path\n"
        "class Killed(sqlite3.Connection):\n"
        "    def executescript(self, script):\n"
        "        return super().executescript(script[: script.rindex('COMMIT')] + 'SELECT die();')\n"
        "    def cursor(self, *args):\n"
        "        return super().cursor(KilledCursor)\n"
        "class KilledCursor(sqlite3.Cursor):\n"
        "    def executescript(self, script):\n"
        "        return super().executescript(script[: script.rindex('COMMIT')] + 'SELECT die();')\n"
        "real = sqlite3.connect\n"
        "def connect(*args, **more):\n"
        "    database = real(*args, factory=Killed, **more)\n"
        "    database.create_function('die', 0, lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "    return database\n"
        "sqlite3.connect = connect\n"
    )
    child = subprocess.run([sys.executable, "-c", code + opened], env=os.environ, check=False)
    assert child.returncode == -signal.SIGKILL
    if module is schema:
        schema.open_database(tmp_path, "", 1 << 30).database.close()
    else:
        policies.PolicyDatabase.open(tmp_path).close()
    assert list(tmp_path.glob("state.*")) == []
