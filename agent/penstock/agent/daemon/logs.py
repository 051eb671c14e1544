"""Structured logs on standard error."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Any

import structlog
from penstock.agent.daemon.log_limit import LogLimit

if TYPE_CHECKING:
    from typing import TextIO


class _Lossy:
    """A stream that loses what cannot be written: its disk is full, or its reader has gone.

    Whoever logs has better things to do than to end of that.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure(log_format: str, level: str) -> None:
    """Set up structlog for the process: one JSON object a line, or lines for a person (*console*).

    Standard library loggers (aiohttp, grpc, opentelemetry) come out the same way, from WARNING on.
    What cannot be written is lost; no call that logs fails of it. Of each sentence there is a bounded number of lines
    (:mod:`penstock.agent.daemon.log_limit`).
    """
    stream: Any = _Lossy(sys.stderr)
    renderer: structlog.typing.Processor
    if log_format == "console":
        # Plain: the richer one prints local variables, and with them what nobody may see.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.JSONRenderer()
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
    handler.addFilter(limit.filter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
