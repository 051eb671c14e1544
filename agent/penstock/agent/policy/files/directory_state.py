"""Policy files on disk: their names, state and texts.

A path is one file, or a directory whose ``*.yaml`` and ``*.yml`` are read.
Kubernetes replaces a mounted ConfigMap by moving the symlink ``..data``; its target
is read, so that all files are of one version.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.errors import FilesError

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILES = 64
MAX_BYTES = 512 * 1024
_SUFFIXES = (".yaml", ".yml")
_VERSION = "..data"


class FileState(NamedTuple):
    """The stat fields that change when a file is written or replaced."""

    device: int
    inode: int
    size: int
    modified: int
    # ctime: unlike mtime, tools cannot set it back.
    changed: int


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """The result of one scan; equal for unchanged files.

    Attributes:
        files: ordered by name.
        problem: why they cannot be read; empty if they can.

    """

    files: tuple[tuple[Path, FileState], ...] = ()
    problem: str = ""


def scan_directory(path: Path) -> DirectoryState:
    """Return the files at *path* with their state."""
    try:
        files = tuple((file, _mark(file)) for file in _list(path))
    except OSError as error:
        return DirectoryState(problem=f"{error.filename or path} cannot be read ({error.strerror})")
    except FilesError as error:
        return DirectoryState(problem=str(error))
    if sum(mark.size for _, mark in files) > MAX_BYTES:
        return DirectoryState(problem=f"{path} has more than {MAX_BYTES} bytes of policies; shorten them")
    return DirectoryState(files)


def read_files(found: DirectoryState) -> dict[str, str]:
    """Return the texts by file name.

    Raises:
        FilesError: *found* has a problem, or a file is not UTF-8.
        OSError: a file was removed meanwhile.

    """
    if found.problem:
        raise FilesError(found.problem)
    return {file.name: _text(file) for file, _ in found.files}


def _list(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    version = path / _VERSION
    directory = version.resolve(strict=True) if version.is_symlink() else path
    files = sorted(file for file in directory.iterdir() if file.suffix in _SUFFIXES and file.name[0] != ".")
    if not files:
        raise FilesError(
            f"{path} has no file *.yaml or *.yml; for no policies, write one with kind: List and items: []"
        )
    if len(files) > MAX_FILES:
        raise FilesError(f"{path} has {len(files)} files, the limit is {MAX_FILES}; combine policies")
    return files


def _mark(file: Path) -> FileState:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise FilesError(f"{file} is not a regular file; name a file or a directory of files")
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _text(file: Path) -> str:
    with file.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    try:
        return content[:MAX_BYTES].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FilesError(f"{file.name}:{line}: this is not UTF-8; save it as UTF-8") from None
