"""The state directory: one owner, and a substitute if it cannot be written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import StateError, UnwritableError
from penstock.agent.state.budget import MIN_LIMIT
from penstock.agent.state.file_lock import Lock

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = structlog.get_logger(__name__)

LOCK = "lock"
# What a substitute begins with, by the beginning of its names.
_COPIED = "policy"
_VOLATILE = "penstock-volatile-"
_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  (a directory of our own is made there)


_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Of the files that the agent makes in it.
_OURS = (LOCK, "addresses", "journal", "policy", "reserve", "state.corrupt-")


def prepare_directory(path: Path) -> None:
    """Create the state directory if need be, for its owner alone; one that is there becomes so if it is ours.

    Raises:
        UnwritableError: it is there, or could be, but on a disk that is read-only for us.
        StateError: it cannot be created, or holds a link by the name of a file of ours.

    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        kind = UnwritableError if error.errno == errno.EROFS else StateError
        raise kind(
            f"the state directory {str(path)!r} cannot be created ({error.strerror}); "
            "give --state-dir one that can be written"
        ) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise UnwritableError(
            f"the state directory {str(path)!r} cannot be written; give --state-dir one that can"
        )
    _protect(path)
    if link := find_foreign_link(path):
        raise StateError(
            f"{link} is a symbolic link, and the agent follows none in its state directory: remove it, "
            "or set --state-dir to the directory that it points to"
        )


def _protect(path: Path) -> None:
    """Take others' permissions; a directory that is not ours, and a place like /tmp, stay as they are."""
    mode = stat.S_IMODE(path.stat().st_mode)
    wanted = mode & ~_OTHERS
    if mode == wanted:
        return
    if not _is_ours_alone(path) or not _changed(path, wanted):
        # The root of a volume, which often belongs to root, is usually mounted into one container.
        log = _log.info if path.is_mount() else _log.warning
        log(
            "other users have permissions in the state directory, which the agent cannot take; its files are for its "
            "own user: mount the volume into the agent's container only, or give --state-dir a subdirectory",
            path=str(path),
            mode=f"{mode:04o}",
        )
        return
    _log.warning(
        "other users had permissions in the state directory; they were removed",
        path=str(path),
        mode=f"{wanted:04o}",
        before=f"{mode:04o}",
    )


def _changed(path: Path, mode: int) -> bool:
    try:
        path.chmod(mode)
    except OSError:
        return False
    return True


def _is_ours_alone(path: Path) -> bool:
    found = path.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX


def is_writable_by_others(path: Path) -> bool:
    """Return whether other users can write to the directory and a start does not change that."""
    return bool(path.stat().st_mode & _OTHERS_WRITE) and not _is_ours_alone(path)


def find_foreign_link(path: Path) -> Path | None:
    """Return a symbolic link in the state directory that has the name of a file of ours; None if there is none."""
    try:
        return next(
            (each for each in path.iterdir() if each.name.startswith(_OURS) and each.is_symlink()), None
        )
    except OSError:
        return None


class StateDirectory:
    """A directory that this process owns until :meth:`release`.

    Attributes:
        path: where the state is.
        limit: bytes that it may take.
        trouble: a sentence, if it is a substitute that ends with the agent; else empty.

    """

    def __init__(self, wanted: Path, limit: int) -> None:
        """Own *wanted*, or a substitute if that cannot be written.

        Raises:
            StateError: another agent has it, or there is no place that can be written.

        """
        self.path, self.limit, self.trouble = wanted, limit, ""
        try:
            prepare_directory(wanted)
        except UnwritableError as error:
            self._substitute(str(error))
        self._turn = threading.Lock()
        self._lock = self._own()

    def _own(self) -> Lock:
        return Lock(self.path / LOCK, f"--state-dir {self.path}")

    def claim(self) -> None:
        """Verify that the directory exists and is this agent's; create one that was removed. From any thread.

        Raises:
            TakenError: another agent has taken it meanwhile.
            StateError: it cannot be made.

        """
        with self._turn:
            if not self._lock.in_place:
                prepare_directory(self.path)
                lock = self._own()
                self._lock.release()
                self._lock = lock

    def leave(self, error: UnwritableError) -> None:
        """Switch to a substitute, because no database can be opened here.

        Raises:
            UnwritableError: this is one already.
            StateError: there is no place that can be written.

        """
        if self.trouble:
            raise error
        self._lock.release()
        self._substitute(f"{error}; free disk space there and restart the agent")
        self._lock = self._own()

    def _substitute(self, reason: str) -> None:
        wanted, self.path = self.path, _volatile(reason)
        self.limit = min(self.limit, MIN_LIMIT)
        # Policies go on to hold, those of the journal's time do not: its counters begin anew, and say so.
        for path in wanted.glob(f"{_COPIED}*"):
            with contextlib.suppress(OSError):
                shutil.copyfile(path, self.path / path.name)
        self.trouble = f"{reason}; until then counters, traces and policies are kept in {self.path} and are lost with the agent"
        _log.error(
            "the state is in a substitute directory and is lost when the agent ends",
            reason=reason,
            place=str(self.path),
        )

    def release(self) -> None:
        """Release the directory; a substitute is removed."""
        self._lock.release()
        if self.trouble:
            shutil.rmtree(self.path, ignore_errors=True)


def _volatile(reason: str) -> Path:
    for place in filter(None, (os.environ.get("TMPDIR"), *_PLACES)):
        _sweep(Path(place))
        try:
            return Path(tempfile.mkdtemp(prefix=_VOLATILE, dir=place))
        except OSError:
            continue
    raise StateError(f"{reason}; there is no other place either, {', '.join(_PLACES)} cannot be written")


def _sweep(place: Path) -> None:
    """Remove the substitutes of killed agents: those without a lock."""
    for path in place.glob(f"{_VOLATILE}*"):
        with contextlib.suppress(OSError), _unowned(path):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _unowned(path: Path) -> Iterator[None]:
    """Hold the lock of a directory of our own user's; OSError if another agent holds it."""
    if path.is_symlink() or path.stat().st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "another user's", str(path))
    handle = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
