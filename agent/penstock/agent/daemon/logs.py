"""Structured logs on standard error, with a bounded number of lines of each sentence.

The stream may stand still: a container's runtime, a pipe, a full disk.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

# Of one sentence: so many lines at once, so many a second in the long run. All sources of a pod may come at once.
BURST = 256
PER_SECOND = 1.0
# Distinct sentences that are counted; ours are few, those of libraries are unbounded.
_MAX_SENTENCES = 512
LEFT_OUT = "left_out"
"""Field of a line: how many like it were left out before."""


# Characters that wait for the stream; what comes then is lost, and counted.
MOST_WAITING: Final = 1 << 20
# Whoever logs waits so long for a line to be written, but not while the stream stands still.
_PATIENCE: Final = 0.05
# At the end of the process.
_LAST_SECONDS: Final = 1.0


class LogLimit:
    """A token bucket for each sentence; any thread.

    Args:
        clock: monotonic seconds.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By sentence: the level of its bucket and when that was, and how many lines were left out.
        self._buckets: dict[str, tuple[float, float, int]] = {}

    def admit(self, sentence: str) -> int | None:
        """Return how many lines of *sentence* were left out since the last one; None if this one is left out as well."""
        now = self._clock()
        with self._lock:
            if sentence not in self._buckets and len(self._buckets) >= _MAX_SENTENCES:
                sentence = ""
            level, at, left_out = self._buckets.get(sentence, (float(BURST), now, 0))
            level = min(float(BURST), level + (now - at) * PER_SECOND)
            if level < 1.0:
                self._buckets[sentence] = level, now, left_out + 1
                return None
            self._buckets[sentence] = level - 1.0, now, 0
            return left_out

    def processor(
        self, _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Limit structlog's lines."""
        left_out = self.admit(str(event.get("event", "")))
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event[LEFT_OUT] = left_out
        return event

    def filter(self, record: logging.LogRecord) -> bool:
        """Limit the standard library's records, each by its text before anything is put into it."""
        left_out = self.admit(f"{record.name}: {record.msg}")
        if left_out is None:
            return False
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} like this were left out)"
            record.args = ()
        return True


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what gRPC says, with a traceback, of an answer to a caller that has hung up: any caller may, at any time."""
    return not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError))


def configure_logging(log_format: str, level: str) -> None:
    """Set up structlog for the process: one JSON object a line, or lines for a person (*console*).

    Standard library loggers (aiohttp, grpc, opentelemetry) come out the same way, from WARNING on.
    What cannot be written is lost; no call that logs fails of it, or waits for a stream that stands still. Of each sentence there is a bounded number of lines
    (:class:`LogLimit`).
    """
    renderer: structlog.typing.Processor
    if log_format == "console":
        # Plain: the rich one prints local variables, which may hold secrets.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.JSONRenderer()
    stream: Any = LogStream(sys.stderr, functools.partial(_lost_line, renderer))
    limit = LogLimit()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[limit.processor, *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    handler.addFilter(_is_news)
    handler.addFilter(limit.filter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _lost_line(renderer: structlog.typing.Processor, count: int) -> str:
    event = {
        "lost_lines": count,
        "event": "lines of this log are lost: nobody has read it",
        "level": "warning",
    }
    stamped = structlog.processors.TimeStamper(fmt="iso", utc=True)(None, "warning", event)
    return f"{renderer(None, 'warning', stamped)!s}\n"


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
