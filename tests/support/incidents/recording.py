"""Takes the bundle of an incident from a running agent, and makes it one of no machine in particular.

What a person would send is the bundle as it is; what the repository keeps has no host name, no user, no path, and neither
the metrics page nor the configuration, which no diagnosis needs.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import socket
import sqlite3
import tempfile
import zipfile
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.journal.database.stored_rows import pack, unpack
from penstock.proto.v1.ingest_pb2 import Batch

from demo.servers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from demo.common.agent import Agent

_LEFT_OUT = ("metrics.txt", "configuration.json")
_POLICIES = "policy.db"
_JOURNAL = "journal.db"
_STATE = "state.json"
_MANIFEST = "manifest.json"
# What engines connect to, and where agents keep their state, in the guides.
_DIRECTORY = "/run/penstock"


def take_bundle(agent: Agent, target: Path, *, began: float) -> None:
    """Write the neutral bundle of *agent* to *target*; its manifest says how long ago the incident *began*, a time."""
    with tempfile.TemporaryDirectory() as directory:
        taken = Path(directory, "taken")
        ran = agent.ctl("bundle", "--since", "1h", "-f", str(taken))
        assert ran.code == 0, ran.output
        neutralize(taken, target, {str(agent.directory): _DIRECTORY, **_names()}, began)


def _names() -> dict[str, str]:
    """Return what stands for the person and the machine that record."""
    return {
        str(ROOT / ".cache" / "models"): "/models",
        str(ROOT / ".cache" / "films" / "models"): "/models",
        f"{getpass.getuser()}@{socket.gethostname()}": "ada@ops",
        f"@{socket.gethostname()}": "@ops",
    }


def neutralize(taken: Path, target: Path, words: Mapping[str, str], began: float) -> None:
    """Write the bundle *taken* to *target* with other *words*, the age of what *began*, and without what is left out."""
    with zipfile.ZipFile(taken) as archive:
        content = {
            name: archive.read(name) for name in archive.namelist() if name not in (_MANIFEST, *_LEFT_OUT)
        }
        manifest = json.loads(archive.read(_MANIFEST))
    content[_STATE] = _replaced(content[_STATE].decode(), words).encode()
    content[_POLICIES] = _replaced_in_tables(content[_POLICIES], words)
    content[_JOURNAL] = _replaced_in_batches(content[_JOURNAL], words)
    window = math.ceil(datetime.fromisoformat(manifest["created"]).timestamp() - began)
    manifest |= {
        "address": "",
        "since_seconds": float(window),
        "files": [_described(name, body) for name, body in content.items()],
    }
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest, indent=2))
        for name, body in content.items():
            archive.writestr(name, body)


def _described(name: str, body: bytes) -> dict[str, object]:
    return {"name": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}


def _replaced(text: str, words: Mapping[str, str]) -> str:
    for word, other in words.items():
        text = text.replace(word, other)
    return text


def _replaced_in_tables(database: bytes, words: Mapping[str, str]) -> bytes:
    """Return *database* with other words in each column that holds text."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        copy.deserialize(database)
        # The audit log lets nobody edit it.
        triggers = copy.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            copy.execute(f'DROP TRIGGER "{name}"')
        for table, column in _columns(copy):
            for word, other in words.items():
                copy.execute(
                    f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?) '
                    f"""WHERE typeof("{column}") = 'text'""",
                    (word, other),
                )
        for _, statement in triggers:
            copy.execute(statement)
        copy.execute("VACUUM")
        return copy.serialize()


def _replaced_in_batches(database: bytes, words: Mapping[str, str]) -> bytes:
    """Return the journal *database* with other words in what the agent writes itself: who forgot an engine."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        copy.deserialize(database)
        for number, stored, packed in copy.execute("SELECT id, body, packed FROM batches").fetchall():
            batch = Batch.FromString(unpack(stored, packed))
            for event in batch.events:
                if event.HasField("forgotten"):
                    event.forgotten.author = _replaced(event.forgotten.author, words)
            changed = (*pack(batch.SerializeToString()), number)
            copy.execute("UPDATE batches SET body = ?, packed = ? WHERE id = ?", changed)
        copy.execute("VACUUM")
        return copy.serialize()


def _columns(database: sqlite3.Connection) -> Iterable[tuple[str, str]]:
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        for row in database.execute(f'PRAGMA table_info("{table}")').fetchall():
            yield table, row[1]
