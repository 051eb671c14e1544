"""What counts while a scheduler works: callgrind, strace, the thread's clock, or Python's own count of memory blocks.

A meter counts between ``on`` and ``off``; ``end`` says what came together since ``begin``, where that is known in this process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from benchmarks.replay.reports import MARK

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCE: Final = Path(__file__).with_name("counted.c")
_LIBRARY: Final = Path(__file__).resolve().parents[2] / ".cache" / "replay" / "counted.so"


class Meter(Protocol):
    """Counts between on and off."""

    @property
    def on(self) -> Callable[[], object]:
        """Begin to count."""

    @property
    def off(self) -> Callable[[], object]:
        """End it."""

    def begin(self, label: str) -> None:
        """Begin at zero."""

    def end(self, label: str) -> float:
        """Return what was counted; zero where another process reads it."""


class Callgrind:
    """Instructions: a dump for each label, which :func:`benchmarks.replay.reports.parse_dump` reads."""

    def __init__(self) -> None:
        """Load the functions; :func:`build` has compiled them."""
        self._functions = ctypes.CDLL(str(_LIBRARY))
        self._functions.dump.argtypes = [ctypes.c_char_p]
        self.on: Callable[[], object] = self._functions.toggle
        self.off: Callable[[], object] = self._functions.toggle

    def begin(self, label: str) -> None:
        """Translate anew and begin at zero."""
        del label
        self._functions.start()
        self._functions.zero()

    def end(self, label: str) -> float:
        """Write the dump."""
        self._functions.dump(label.encode())
        self._functions.stop()
        return 0.0


class Strace:
    """System calls: a mark at either end, which :func:`benchmarks.replay.reports.parse_calls` finds."""

    def __init__(self) -> None:
        """Have no label yet."""
        self._label = ""

    def begin(self, label: str) -> None:
        """Name what follows."""
        self._label = label

    def on(self) -> None:
        """Mark the beginning."""
        os.access(f"{MARK}{self._label}/on", os.F_OK)

    def off(self) -> None:
        """Mark the end."""
        os.access(f"{MARK}{self._label}/off", os.F_OK)

    def end(self, label: str) -> float:
        """Leave it to strace."""
        del label
        return 0.0


class Difference:
    """The sum of the differences of a number: the thread's CPU time, or the blocks of memory that are kept."""

    def __init__(self, read: Callable[[], int]) -> None:
        """Count what *read* returns."""
        self._read = read
        self._sum = self._before = 0

    def begin(self, label: str) -> None:
        """Begin at zero."""
        del label
        self._sum = 0

    def on(self) -> None:
        """Read it."""
        self._before = self._read()

    def off(self) -> None:
        """Read it again."""
        self._sum += self._read() - self._before

    def end(self, label: str) -> float:
        """Return the sum."""
        del label
        return self._sum


def meter(name: str) -> Meter:
    """Return the meter of that name: ``callgrind``, ``strace``, ``clock`` (nanoseconds) or ``blocks``."""
    if name == "callgrind":
        return Callgrind()
    if name == "strace":
        return Strace()
    return Difference({"clock": time.thread_time_ns, "blocks": sys.getallocatedblocks}[name])


def build() -> None:
    """Compile callgrind's functions."""
    _LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    made = _LIBRARY.with_suffix(f".{os.getpid()}")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, _SOURCE], check=True)
    made.replace(_LIBRARY)
