"""Delivering spans: retries while the backend is away, and what it refuses is given up alone."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import structlog
from penstock.agent.traces.otel import SpanConverter
from penstock.agent.traces.verdict import ExportError, Fate

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from penstock.agent.model import Source
    from penstock.agent.samples import ProbeSample, TransferSample
    from penstock.agent.traces.backend import Backend
    from penstock.agent.traces.spans import Span
    from penstock.proto.v1.events_pb2 import Event

    OnExported = Callable[[Source, Event | TransferSample | ProbeSample, str, str], None]

_log = structlog.get_logger(__name__)

_FIRST_BACKOFF = 0.25
_MAX_BACKOFF = 30.0
# Of spans whose refusal may be the backend's trouble or their own.
_DOUBTFUL_TRIES = 5
# Spans that are exported later than this after they ended are marked as replayed.
_REPLAYED_NANO = 60_000_000_000


class Delivery:
    """Sends spans until they are taken; one thread.

    Args:
        observe: takes the seconds of each call to the backend, whether or not it took the spans.

    Attributes:
        delivered: spans that the backend took.
        refused: spans that it refused, each by itself, and that were given up.
        error: why the last call failed; empty while all is well.

    """

    def __init__(
        self,
        backend: Backend,
        stopping: threading.Event,
        on_exported: OnExported | None = None,
        observe: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._backend = backend
        self._stopping = stopping
        self._on_exported = on_exported
        self._observe = observe
        self._converter = SpanConverter()
        self.delivered = 0
        self.refused = 0
        self.error = ""

    def deliver(
        self, spans: Sequence[Span], report: Callable[[], None], doubtful_tries: int = _DOUBTFUL_TRIES
    ) -> bool:
        """Send *spans* in one call; more only if the backend refuses some.

        Retries with a growing pause for as long as the backend is away, and calls *report* after each
        failure. Returns False if the end came first: then none or some of them were taken.
        """
        backoff = _FIRST_BACKOFF
        while True:
            # One more try when the end comes in a pause, and no more.
            last = self._stopping.is_set()
            error = self._send(spans)
            if error is None:
                self._recovered()
                return True
            doubtful_tries -= error.fate is Fate.DOUBTFUL
            if error.fate is Fate.REFUSED or doubtful_tries <= 0:
                return self._give_up(spans, error, report)
            self._failed(error)
            report()
            if last:
                return False
            # Not all agents of a fleet at once when their backend is back.
            self._stopping.wait(max(backoff * random.uniform(0.5, 1.0), error.wait))  # noqa: S311
            backoff = min(2 * backoff, _MAX_BACKOFF)

    def _send(self, spans: Sequence[Span]) -> ExportError | None:
        newest = max(span.end_unix_nano for span in spans)
        replayed = time.time_ns() - newest > _REPLAYED_NANO
        readable = [self._converter.readable(span, replayed=replayed) for span in spans]
        begun = time.monotonic()
        answer = self._backend.send(readable)
        self._observe(time.monotonic() - begun)
        if isinstance(answer, ExportError):
            return answer
        self.delivered += len(spans) - answer.rejected
        self.refused += answer.rejected
        if answer.rejected:
            # Which ones it does not say, so none of them is told as one that can be found.
            _log.warning("the trace backend rejected spans", spans=answer.rejected, error=answer.text)
        else:
            for span in spans:
                self._tell(span)
        return None

    def _give_up(self, spans: Sequence[Span], error: ExportError, report: Callable[[], None]) -> bool:
        """Find the refused spans by halving, so that one bad span does not hold up the others."""
        if len(spans) == 1:
            self.refused += 1
            _log.warning("the trace backend refused a span", span=spans[0].name, error=error.text)
            return True
        middle = len(spans) // 2
        return self.deliver(spans[:middle], report, 1) and self.deliver(spans[middle:], report, 1)

    def _tell(self, span: Span) -> None:
        if self._on_exported is None:
            return
        for entry in span.entries:
            self._on_exported(entry.source, entry.body, span.trace_id, span.span_id)

    def _failed(self, error: ExportError) -> None:
        if not self.error:
            _log.warning("traces cannot be exported; they wait in the journal", error=error.text)
        self.error = error.text

    def _recovered(self) -> None:
        if self.error:
            _log.info("traces are exported again")
        self.error = ""
