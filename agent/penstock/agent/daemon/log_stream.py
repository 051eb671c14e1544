"""Lines of the log on their way to a stream that may stand still: a container's runtime, a pipe, a full disk."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

# Characters that wait for the stream; what comes then is lost, and counted.
MOST_WAITING: Final = 1 << 20
# Whoever logs waits so long for a line to be written, but not while the stream stands still.
_PATIENCE: Final = 0.05
# At the end of the process.
_LAST_SECONDS: Final = 1.0


class LogStream:
    """A stream that makes nobody wait and fails for nobody; any thread.

    A thread writes. What cannot be written (full disk, closed pipe) is lost.
    """

    def __init__(
        self, stream: TextIO, lost_line: Callable[[int], str], most_waiting: int = MOST_WAITING
    ) -> None:
        """Write to *stream*; *lost_line* returns the line about so many lines that were lost."""
        self._stream = stream
        self._lost_line = lost_line
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._lines: deque[str] = deque()
        self._waiting = 0
        self._lost = 0
        self._writing = False
        self._stands_still = False
        threading.Thread(target=self._run, name="log", daemon=True).start()
        atexit.register(self.wait, _LAST_SECONDS)

    def write(self, text: str) -> int:
        """Take *text*, and return when it is written, or the stream stands still."""
        with self._changed:
            if self._waiting + len(text) > self._most_waiting:
                self._lost += 1
                return len(text)
            self._lines.append(text)
            self._waiting += len(text)
            self._changed.notify_all()
            if not self._stands_still:
                self._stands_still = not self._changed.wait_for(self._is_written, _PATIENCE)
        return len(text)

    def flush(self) -> None:
        """Do nothing: each line is flushed."""

    def wait(self, seconds: float) -> bool:
        """Return whether all is written, after at most *seconds*."""
        with self._changed:
            return self._changed.wait_for(self._is_written, seconds)

    def _is_written(self) -> bool:
        return not self._lines and not self._writing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                if not self._lines:
                    self._stands_still = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                text, lost = "".join(self._lines), self._lost
                self._lines.clear()
                self._waiting = self._lost = 0
                self._writing = True
            if lost:
                text += self._lost_line(lost)
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
                self._stream.flush()
