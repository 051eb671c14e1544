"""Takes the newest dumps of vLLM's watchdog (0.33: ``--watchdog-config``) from a directory into one text."""

from __future__ import annotations

import heapq
import itertools
import os
import re
import stat
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MOST_DUMPS: Final = 16
MOST_BYTES: Final = 192 << 10
"""Of each file: its end, where the newest stacks are."""
# Names of the directory that are looked at.
_MOST_NAMES: Final = 10_000
# As vllm/utils/watch_dog.py names them.
_NAME: Final = re.compile(r"VLLM_STACK_DUMP_for_[A-Za-z0-9_.-]{1,128}_[0-9]{1,10}\.log")
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WatchdogDumps(NamedTuple):
    """What was taken: the text, the number of its files, and how many there are."""

    text: bytes
    taken: int
    found: int


def read_watchdog_dumps(directory: Path) -> WatchdogDumps:
    """Return the newest dumps in *directory*, the newest first, each behind a line with its name, size and time.

    Links and what is no file are left out; so are dumps that vanish, or may not be read, which are named.

    Raises:
        OSError: the directory cannot be read.

    """
    with os.scandir(directory) as entries:
        found = list(_dumps(itertools.islice(entries, _MOST_NAMES)))
    newest = heapq.nlargest(MOST_DUMPS, found)
    parts = [_read(directory, name) for _, name in newest]
    left = len(found) - len(newest)
    head = f"{len(newest)} of {len(found)} watchdog dumps in {directory}, the newest first"
    more = f"; {left} older ones are left out" if left else ""
    return WatchdogDumps(f"{head}{more}\n".encode() + b"".join(parts), len(newest), len(found))


def _dumps(entries: Iterable[os.DirEntry[str]]) -> Iterator[tuple[float, str]]:
    """Yield when each dump among *entries* was last written, and its name."""
    for entry in entries:
        with suppress(FileNotFoundError):
            if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                yield entry.stat(follow_symlinks=False).st_mtime, entry.name


def _read(directory: Path, name: str) -> bytes:
    try:
        with os.fdopen(os.open(directory / name, _FLAGS), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                return f"\n===== {name}: not a file\n".encode()
            left_out = max(0, about.st_size - MOST_BYTES)
            file.seek(left_out)
            content = file.read(MOST_BYTES)
    except OSError as error:
        return f"\n===== {name}: {error.strerror}\n".encode()
    changed = datetime.fromtimestamp(about.st_mtime, UTC).isoformat(timespec="seconds")
    cut = f", the first {left_out} left out" if left_out else ""
    return f"\n===== {name}: {about.st_size} bytes{cut}, last written {changed}\n".encode() + content
