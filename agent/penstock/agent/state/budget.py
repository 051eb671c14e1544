"""The shares of ``--state-limit``: of the log, of its write-ahead log, and from where on old batches go. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20
DEFAULT_LIMIT: Final = 1 << 30
"""Bytes of the state directory, unless ``--state-limit`` says otherwise."""
MIN_LIMIT: Final = 32 * MIB
"""Below this the saved metrics of a busy pod alone could fill the log."""
_PAGE_BYTES = 4096
# Bytes of the write-ahead log above which it is copied beside the writer; below, the writer waits for the copy.
_ROOMY_WAL = 32 * MIB


@dataclass(frozen=True, slots=True)
class Budget:
    """The journal's share, in bytes.

    Attributes:
        limit: for all of its files together: the database, its write-ahead log and the reserve.

    """

    limit: int = DEFAULT_LIMIT

    @property
    def wal(self) -> int:
        """Of the write-ahead log."""
        return min(64 * MIB, self.limit // 8)

    @property
    def checkpoints_beside(self) -> bool:
        """Whether the write-ahead log has room to grow while `journal.database.wal_checkpointer` copies it beside the writer."""
        return self.wal >= _ROOMY_WAL

    @property
    def checkpoint_pages(self) -> int:
        """Pages in the write-ahead log at which the writer itself copies it, so that it can begin again."""
        quarters = 2 if self.checkpoints_beside else 1
        return max(1, self.wal * quarters // 4 // _PAGE_BYTES)

    @property
    def transaction(self) -> int:
        """Bytes of batches in one transaction; the indexes come on top. A batch has one MiB at most."""
        return max(MIB, self.wal // 8)

    @property
    def reserve(self) -> int:
        """Of the file that is given up on a full disk, so that the log can be trimmed there."""
        return min(16 * MIB, self.limit // 32)

    @property
    def full(self) -> int:
        """Of the database's file; SQLite itself goes no further."""
        return self.limit - self.wal - self.reserve

    @property
    def stop(self) -> int:
        """Of what is in use in that file; above it no batch is taken in, and the saved metrics still find room."""
        return self.full - self.full // 20

    @property
    def high(self) -> int:
        """Of what is in use in that file; above it the oldest batches go."""
        return self.full - self.full // 10

    @property
    def max_pages(self) -> int:
        """Pages of the database's file."""
        return self.full // _PAGE_BYTES
