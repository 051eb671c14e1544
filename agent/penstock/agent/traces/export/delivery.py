"""Sends finished spans to the trace backend: retries through an outage, drops what the backend refuses alone."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import structlog
from penstock.agent.traces.export.otlp_status import MAX_TEXT, ExportError, ExportStatusCode
from penstock.agent.traces.spans.sdk_spans import SpanConverter

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from penstock.agent.batch import ProbeSample, TransferSample
    from penstock.agent.model import Source
    from penstock.agent.traces.export.otlp_client import OtlpClient
    from penstock.agent.traces.spans import Span
    from penstock.proto.v1.events_pb2 import Event

    OnExported = Callable[[Source, Event | TransferSample | ProbeSample, str, str], None]

_log = structlog.get_logger(__name__)

# Seconds between two tries of a call, doubled each time: an outage of seconds is hardly seen, one of hours costs little.
_FIRST_BACKOFF = 0.25
_MAX_BACKOFF = 30.0
# Ambiguous refusals of one call, at the pace of an outage, before it is halved; of a single span, before it is dropped.
AMBIGUOUS_TRIES = 8
# Spans that are exported a minute or more after they ended are marked as replayed.
_REPLAYED_NANO = 60_000_000_000


class Delivery:
    """Sends spans until the backend accepts or refuses them; one thread.

    Args:
        client: makes the calls.
        stopping: set at the end of the export; interrupts a pause.
        on_exported: called with each entry of an accepted span.
        observe: called with the seconds of each call to the backend, whether or not it succeeded.
        converter: makes the spans that are sent.

    Attributes:
        delivered: number of spans that the backend accepted.
        refused: number of spans that were dropped: refused alone, or rejected by a partial success.
        error: why the backend does not accept spans at present; empty while it does.

    """

    def __init__(
        self,
        client: OtlpClient,
        stopping: threading.Event,
        on_exported: OnExported | None = None,
        observe: Callable[[float], None] = lambda _seconds: None,
        converter: SpanConverter | None = None,
    ) -> None:
        self._client = client
        self._stopping = stopping
        self._on_exported = on_exported
        self._observe = observe
        self._converter = converter or SpanConverter()
        self._backoff = _FIRST_BACKOFF
        self.delivered = 0
        self.refused = 0
        self.error = ""

    def deliver(self, spans: Sequence[Span], report: Callable[[], None]) -> bool:
        """Send *spans* in one call; in several if the backend refuses that call.

        Retries with a growing pause while the backend is away, and calls *report* after each failure. Halves a call
        that is refused for its content, at once, or ambiguously, after ``AMBIGUOUS_TRIES`` tries; drops and counts a
        single span that is refused so. Returns False if the export ended first: then some spans may not be delivered.
        """
        # Sent apart, the last one next.
        parts = [tuple(spans)]
        ambiguous = 0
        while parts:
            # One more try if the export ends in a pause.
            last = self._stopping.is_set()
            error = self._send(parts[-1])
            if error is None:
                self._recovered()
                parts.pop()
                ambiguous = 0
                continue
            if error.code is ExportStatusCode.PERMANENT:
                self._split(parts, error)
                ambiguous = 0
                continue
            self._failed(error)
            report()
            if last:
                return False
            ambiguous += error.code is ExportStatusCode.AMBIGUOUS
            if ambiguous >= AMBIGUOUS_TRIES:
                self._split(parts, error)
                ambiguous = 0
            self._pause(error.wait)
        # A dropped span no longer waits; the back-off stays until the backend accepts a call.
        self.error = ""
        return True

    def _send(self, spans: Sequence[Span]) -> ExportError | None:
        newest = max(span.end_unix_nano for span in spans)
        replayed = time.time_ns() - newest > _REPLAYED_NANO
        try:
            readable = [self._converter.readable(span, replayed=replayed) for span in spans]
        except Exception as error:  # noqa: BLE001  (a span that cannot be converted must not end the export)
            return ExportError(f"{type(error).__name__}: {error}"[:MAX_TEXT], ExportStatusCode.PERMANENT)
        started = time.monotonic()
        answer = self._client.send(readable)
        self._observe(time.monotonic() - started)
        if isinstance(answer, ExportError):
            return answer
        self.delivered += len(spans) - answer.rejected
        self.refused += answer.rejected
        if answer.rejected:
            # The answer does not name them, so no span of the call gets an exemplar.
            _log.warning("the trace backend rejected spans", spans=answer.rejected, error=answer.text)
        else:
            for span in spans:
                self._notify(span)
        return None

    def _split(self, parts: list[tuple[Span, ...]], error: ExportError) -> None:
        """Halve the next part; drop it if it is a single span."""
        part = parts.pop()
        if len(part) > 1:
            middle = len(part) // 2
            parts += (part[middle:], part[:middle])
            return
        (span,) = part
        self.refused += 1
        _log.warning(
            "a span is dropped: the trace backend refuses it",
            span=span.name,
            request=span.request_id,
            error=error.text,
        )

    def _notify(self, span: Span) -> None:
        if self._on_exported is None:
            return
        for entry in span.entries:
            self._on_exported(entry.source, entry.body, span.trace_id, span.span_id)

    def _pause(self, wait: float) -> None:
        pause, self._backoff = self._backoff, min(2 * self._backoff, _MAX_BACKOFF)
        # Jitter: the agents of a fleet do not return all at once.
        self._stopping.wait(max(pause * random.uniform(0.5, 1.0), wait))  # noqa: S311

    def _failed(self, error: ExportError) -> None:
        if not self.error:
            _log.warning("traces cannot be exported; they wait in the journal", error=error.text)
        self.error = error.text

    def _recovered(self) -> None:
        if self.error:
            _log.info("traces are exported again")
        self.error, self._backoff = "", _FIRST_BACKOFF
