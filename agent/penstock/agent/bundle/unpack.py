"""Opens a bundle that may come from anybody: every bound is checked before a byte is unpacked, and nothing stays."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from penstock.agent.bundle.contents import MANIFEST, MAX_BYTES, BundledFile, BundleManifest, read_manifest
from penstock.agent.errors import BundleError
from penstock.agent.parsing import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

# More than a bundle has.
_MAX_FILES: Final = 16
_MAX_MANIFEST: Final = 1 << 20
_MAX_TOTAL: Final = 8 << 30
# A database of small integers shrinks to a twentieth; a bomb to a thousandth.
_MAX_RATIO: Final = 200
_SMALL: Final = 4 << 20
_PIECE: Final = 1 << 20
# Its list of files is read at once, by the container's own size for it; all other reads are pieces.
_MAX_READ: Final = 1 << 20
# Of these the module unpacks no more than it is asked for.
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED: Final = 1
# What the module raises over bytes that are no zip, and deflate over bytes that are not its own.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    UnicodeError,
)


_PREFIX: Final = "penstock-bundle-"
_LOCK, _UNLOCKED = ".lock", ".lock.new"


def unpack_bundle(path: Path, directory: Path) -> BundleManifest:
    """Unpack the bundle at *path* into the empty *directory*; return what it holds.

    Only the files that its manifest lists are written, by their names and nowhere else.

    Raises:
        BundleError: one sentence: it is no bundle, is damaged, too large, or of a newer format.
        OSError: it cannot be read, or *directory* cannot be written.

    """
    with io.FileIO(path, opener=_open) as raw, _BoundedReader(raw) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BundleError("it is not a file")
        try:
            with zipfile.ZipFile(file) as archive:
                return _unpack(archive, directory)
        except _DAMAGE as error:
            raise BundleError("it is not a bundle, or it is incomplete: copy it again") from error


def _open(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


class _BoundedReader(io.BufferedReader):
    """Refuses to read more at once than any part of a bundle needs."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at most *size* bytes."""
        if size is not None and size > _MAX_READ:
            raise BundleError(f"its list of files is larger than {_MAX_READ >> 20} MiB")
        return super().read(size)


def _unpack(archive: zipfile.ZipFile, directory: Path) -> BundleManifest:
    entries = archive.infolist()
    if len(entries) > _MAX_FILES:
        raise BundleError(f"it has {len(entries)} files and a bundle has at most {_MAX_FILES}")
    for entry in entries:
        _check_method(entry)
    by_name = {entry.filename: entry for entry in entries}
    if len(by_name) != len(entries) or MANIFEST not in by_name:
        raise BundleError(f"it has no {MANIFEST}, or a file twice: it is not a bundle")
    if by_name[MANIFEST].file_size > _MAX_MANIFEST:
        raise BundleError(f"its {MANIFEST} is larger than {_MAX_MANIFEST >> 20} MiB")
    with archive.open(MANIFEST) as stream:
        manifest = read_manifest(stream.read(_MAX_MANIFEST))
    unlisted = by_name.keys() - {MANIFEST} - {each.name for each in manifest.files}
    if unlisted:
        raise BundleError(f"it has a file {min(unlisted)[:80]!r} that its manifest does not list")
    for each in manifest.files:
        _check(each, by_name.get(each.name))
    if sum(each.size for each in manifest.files) > _MAX_TOTAL:
        raise BundleError(f"its files have more than {_MAX_TOTAL >> 30} GiB together")
    for each in manifest.files:
        with archive.open(each.name) as stream:
            _copy(each, stream, directory)
    return manifest


def _check_method(entry: zipfile.ZipInfo) -> None:
    """Check that a file is packed in a way whose unpacking is bounded."""
    if entry.flag_bits & _ENCRYPTED:
        raise BundleError(f"its {entry.filename[:80]!r} is encrypted; a bundle is not")
    if entry.compress_type not in _METHODS:
        raise BundleError(
            f"its {entry.filename[:80]!r} is packed by method {entry.compress_type}; a bundle is stored or deflated"
        )


def _check(file: BundledFile, entry: zipfile.ZipInfo | None) -> None:
    """Check what the container says about a file, before it is unpacked."""
    if entry is None:
        raise BundleError(f"its {file.name} is missing")
    if entry.file_size != file.size:
        raise BundleError(f"its {file.name} has {entry.file_size} bytes and the manifest says {file.size}")
    if file.size > MAX_BYTES[file.name]:
        raise BundleError(f"its {file.name} is larger than {format_size(MAX_BYTES[file.name])}")
    if file.size > max(_SMALL, entry.compress_size * _MAX_RATIO):
        raise BundleError(
            f"its {file.name} would unpack from {entry.compress_size} to {file.size} bytes; no agent makes such a file"
        )


def _copy(file: BundledFile, stream: IO[bytes], directory: Path) -> None:
    """Unpack one file, and no more of it than was announced."""
    digest, left = hashlib.sha256(), file.size
    target = directory / file.name
    with os.fdopen(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
        while piece := stream.read(min(_PIECE, left + 1)):
            left -= len(piece)
            if left < 0:
                raise BundleError(f"its {file.name} is larger than it says")
            digest.update(piece)
            out.write(piece)
    if left or digest.hexdigest() != file.sha256:
        raise BundleError(f"its {file.name} is damaged: the checksum is wrong")


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
