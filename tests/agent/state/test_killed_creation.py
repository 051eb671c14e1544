"""A first start that is killed while it creates its databases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from penstock.agent.journal.database import schema
from penstock.agent.policy.store import database as policies


@pytest.mark.parametrize("module", [schema, policies])
def test_a_start_that_is_killed_while_it_creates(tmp_path, module):
    """A first start that ends in the middle leaves nothing that the second one stumbles over."""
    opened = {
        schema: f"from penstock.agent.journal.database.schema import open_database as o; o(Path({str(tmp_path)!r}), '', 1 << 30)",
        policies: f"from penstock.agent.policy.store import PolicyDatabase; PolicyDatabase.open(Path({str(tmp_path)!r}))",
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
