"""Directories for what is unpacked, which nobody has to remove by hand.

Who is killed cannot remove its own; the next one does. A directory belongs to a living process as long as that holds a lock
on a file in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX: Final = "penstock-bundle-"
_LOCK, _UNLOCKED = ".lock", ".lock.new"


class ScratchDirectory:
    """A directory of this user alone below *place*, by default the one for temporary files, until :meth:`cleanup`.

    Those of processes that have been killed are removed first.

    Attributes:
        path: of it.

    """

    def __init__(self, place: str | None = None) -> None:
        """Make it.

        Raises:
            OSError: it cannot be made.

        """
        remove_abandoned(place)
        # Removed at the end of the process, too, wherever a signal meets it.
        self._made = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True)
        self.path = Path(self._made.name)
        self._lock = _locked(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove it. Idempotent."""
        self._made.cleanup()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def remove_abandoned(place: str | None = None) -> None:
    """Remove this user's directories below *place* that belong to no living process; those of others stay."""
    for path in list(_own(place or tempfile.gettempdir())):
        with suppress(OSError):
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _own(place: str) -> Iterator[Path]:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    yield Path(entry.path)


def _locked(directory: Path) -> int:
    """Return the open file whose lock says that the directory is in use; -1 where the file system has no locks."""
    lock = os.open(directory / _UNLOCKED, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return -1
    # Only from here on others look at it: it is never there without its lock.
    (directory / _UNLOCKED).rename(directory / _LOCK)
    return lock
