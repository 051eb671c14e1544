"""A file that reserves disk space: released, it leaves room to trim the log on a full disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RESERVE_FILE = "reserve"


class DiskReserve:
    """*size* bytes of disk at *path*. Nothing here raises: without it the agent only has less room."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self.held = False

    def acquire(self) -> None:
        """Allocate the space, if the disk has it."""
        try:
            handle = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(handle, 0, self._size)
                os.ftruncate(handle, self._size)
            finally:
                os.close(handle)
        except OSError:
            self.release()
            return
        self.held = True

    def release(self) -> None:
        """Free the space."""
        self.held = False
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            return  # On a disk that has become read-only nothing can be freed.
