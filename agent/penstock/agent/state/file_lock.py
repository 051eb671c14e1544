"""Which file is at a path, and an advisory lock on one."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from penstock.agent.errors import StateError, TakenError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    Identity: TypeAlias = tuple[int, int]


def file_identity(path: Path) -> Identity | None:
    """Return device and inode of what is at *path*, a link itself and not its target; None if nothing is there."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


class Lock:
    """An advisory lock that ends with the process, however that ends."""

    def __init__(self, path: Path, owned: str) -> None:
        """Take it.

        Args:
            owned: what it stands for, in words.

        Raises:
            TakenError: another process has it.
            StateError: the file cannot be made.

        """
        self._path = path
        try:
            path.parent.mkdir(mode=0o770, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(
                f"{str(path)!r} cannot be made ({error.strerror}); choose another place"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise TakenError(f"another penstock-agent owns {owned}; stop it or choose another one") from error

    @property
    def in_place(self) -> bool:
        """Whether its file is still at its path; another process may hold a lock on a new one."""
        ours = os.fstat(self._file)
        return file_identity(self._path) == (ours.st_dev, ours.st_ino)

    def release(self) -> None:
        """Release it. Idempotent. The file stays: removing it would let two processes lock two files of one name."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
