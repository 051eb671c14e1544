"""Builds a bundle's file from the parts that an agent sends."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import zipfile
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.agent.bundle.contents import (
    DUMPS,
    JOURNAL,
    MANIFEST,
    MAX_BYTES,
    NEEDED,
    POLICIES,
    SENT,
    STATE,
    BundledFile,
    BundleManifest,
    check_values,
)
from penstock.agent.errors import BundleError
from penstock.agent.journal import WindowWriter
from penstock.agent.parsing import format_size
from penstock.proto.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.proto.v1.admin_pb2 import BundleEnd, BundlePart, StoredBatches

_PIECE = 1 << 20
# What an agent sends at once, and what is taken where nobody says how much.
_ONE_PART, _MOST_BYTES = 16 << 20, 1 << 40


class BundleBuilder:
    """Takes the parts in their order, in files below *directory*; :meth:`write` makes the bundle of them.

    Attributes:
        bytes: of batches, as stored, that were taken so far.
        expected: of all that are to come; 0 until the journal has begun.

    """

    def __init__(self, directory: Path, max_bytes: int = _MOST_BYTES) -> None:
        """Take at most *max_bytes* of batches, as were asked for, and a part more."""
        self._directory = directory
        self._most = max_bytes + _ONE_PART
        self._journal: WindowWriter | None = None
        self._end: BundleEnd | None = None
        self._last_batch = self._batches = 0
        self._first: tuple[int, int] = (0, 0)
        self.bytes = self.expected = 0

    def add(self, part: BundlePart) -> None:
        """Take a part.

        Raises:
            BundleError: it is none that this version knows, or more than was asked for.
            OSError, sqlite3.Error: it cannot be written.

        """
        match part.WhichOneof("part"):
            case "file" if part.file.name in SENT:
                with (self._directory / part.file.name).open("ab") as file:
                    file.write(part.file.content)
                    if file.tell() > (most := MAX_BYTES[part.file.name]):
                        raise BundleError(f"the agent's {part.file.name} is larger than {format_size(most)}")
            case "file" | None:
                # Of a newer agent: what it means is not known here.
                return
            case "journal":
                if self._journal is not None:
                    raise BundleError("the agent began the journal twice; see what serves this address")
                self._journal = WindowWriter(self._directory / JOURNAL, part.journal)
                self._last_batch, self.expected = part.journal.last_batch, part.journal.bytes
            case "batches":
                self._add_batches(part.batches)
            case "end":
                self._end = part.end

    def add_dumps(self, text: bytes) -> None:
        """Take dumps of vLLM's watchdog, which are not the agent's.

        Raises:
            OSError: they cannot be written.

        """
        (self._directory / DUMPS).write_bytes(text)

    def _add_batches(self, part: StoredBatches) -> None:
        if self._journal is None:
            raise BundleError("the agent sent batches before the journal; it is of another version")
        for batch in part.batches:
            self._journal.add(batch)
            self._batches += 1
            self.bytes += len(batch.body)
            if self.bytes > self._most:
                raise BundleError(
                    f"the agent sends more than {format_size(self._most)} of the log, which nobody asked for; "
                    "see what serves this address"
                )
            # The newest come first.
            self._first = batch.id, batch.received_unix_nano

    def close(self) -> None:
        """Close the journal; the directory stays. Idempotent."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    def write(self, target: Path, *, address: str, since_seconds: float) -> BundleManifest:
        """Write the bundle to *target*, which appears when it is complete; return what it holds.

        Raises:
            BundleError: the agent has not sent everything.
            OSError, sqlite3.Error: it cannot be written.

        """
        if self._end is None or not all((self._directory / name).exists() for name in NEEDED):
            raise BundleError("the agent ended before the bundle was complete; try again")
        self.close()
        created, version = self._made()
        _compact(self._directory / POLICIES)
        paths = [self._directory / name for name in (*SENT, JOURNAL, DUMPS)]
        number, nanos = self._first
        manifest = BundleManifest(
            created=created,
            agent_version=version,
            agentctl_version=__version__,
            address=address,
            since_seconds=since_seconds,
            first_batch=number,
            first_time=datetime.fromtimestamp(nanos / 1e9, UTC).isoformat(timespec="seconds")
            if number
            else "",
            last_batch=self._last_batch,
            batches=self._batches,
            left_out_batches=self._end.left_out_batches,
            left_out_bytes=self._end.left_out_bytes,
            files=tuple(_described(path) for path in paths if path.exists()),
        )
        written = target.with_name(f".{target.name}.partial-{os.getpid()}")
        try:
            _zip(written, manifest, self._directory)
            written.replace(target)
        finally:
            with suppress(OSError):
                written.unlink(missing_ok=True)
        return manifest

    def _made(self) -> tuple[str, str]:
        """Return when the agent made it, RFC 3339, and the agent's version."""
        text = (self._directory / STATE).read_bytes()
        check_values(STATE, (text,))
        try:
            state = json.loads(text)
            return str(state["time"]), str(state["status"].get("version", ""))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BundleError(f"the agent's {STATE} cannot be read; it is of another version") from error


def _compact(path: Path) -> None:
    """Make one file of a database that was copied page by page, without its free pages."""
    packed = path.with_suffix(".packed")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("VACUUM INTO ?", (str(packed),))
    packed.replace(path)


def _described(path: Path) -> BundledFile:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return BundledFile(path.name, path.stat().st_size, digest.hexdigest())


def _zip(target: Path, manifest: BundleManifest, directory: Path) -> None:
    handle = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
            archive.writestr(MANIFEST, manifest.encoded())
            for each in manifest.files:
                archive.write(directory / each.name, each.name)
        file.flush()
        os.fsync(file.fileno())
