"""Delivering spans: retries while the backend is away, and what it refuses is given up alone."""

from __future__ import annotations

import random
import time
from itertools import islice
from typing import TYPE_CHECKING

import structlog
from penstock.agent.traces.export.otlp_status import MAX_TEXT, ExportError, ExportStatusCode
from penstock.agent.traces.export.suspect_spans import Suspects
from penstock.agent.traces.spans.sdk_spans import SpanConverter

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from penstock.agent.batch import ProbeSample, TransferSample
    from penstock.agent.model import Source
    from penstock.agent.traces.export.otlp_client import OtlpClient
    from penstock.agent.traces.export.suspect_spans import Suspect
    from penstock.agent.traces.spans import Span
    from penstock.proto.v1.events_pb2 import Event

    OnExported = Callable[[Source, Event | TransferSample | ProbeSample, str, str], None]

_log = structlog.get_logger(__name__)

_FIRST_BACKOFF = 0.25
_MAX_BACKOFF = 30.0
# Refusals that may be the backend's trouble before the spans are sent apart.
_DOUBTFUL_TRIES = 5
# Refusals in a row without a pause, to find one bad span of a call's 512 by halving; with more it is the backend.
_SEARCH_DEPTH = 10
# Spans that are set aside, so that what comes next shows whose fault it is, while nothing is taken.
_SET_ASIDE = 32
# Of those that are set aside, asked about after each call of others that was taken.
_SUSPECTS_A_TIME = 8
# Spans that are exported later than this after they ended are marked as replayed.
_REPLAYED_NANO = 60_000_000_000


class Delivery:
    """Sends spans until they are taken; one thread.

    Args:
        observe: takes the seconds of each call to the backend, whether or not it took the spans.

    Attributes:
        delivered: spans that the backend took.
        refused: spans that it refused, each by itself, and that were given up.
        suspects: spans that it refuses and may yet take; what was delivered after them is sent again after a restart.

    """

    def __init__(
        self,
        backend: OtlpClient,
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
        self.suspects = Suspects()
        self._error = ""
        self._backoff = _FIRST_BACKOFF
        self._again_at = 0.0

    @property
    def error(self) -> str:
        """Why spans are not taken at present; empty while all is well."""
        if self._error or not self.suspects:
            return self._error
        refused = next(iter(self.suspects)).error
        return f"{len(self.suspects)} spans are refused, others are taken: {refused}"[:MAX_TEXT]

    def begin(self) -> None:
        """Begin a walk along the log: what was set aside comes again."""
        self.suspects.clear()

    def deliver(self, spans: Sequence[Span], report: Callable[[], None]) -> bool:
        """Send *spans* in one call; more only if the backend refuses some.

        Retries with a growing pause for as long as the backend is away or fails, and calls *report* after each
        failure. What it refuses alone for good is given up; what it may refuse for its own reasons is set aside in
        :attr:`suspects` while it takes others. Returns False if the end came first: then none or some were taken.
        """
        # What is left, in parts that are sent apart; the last one is the next.
        parts = [tuple(spans)]
        failures, searching = 0, False
        while parts:
            # One more try when the end comes in a pause, and no more.
            last = self._stopping.is_set()
            error = self._send(parts[-1])
            if error is None:
                parts.pop()
                if not searching:
                    # It was the backend's trouble: what was cut meanwhile goes in one call again.
                    parts = [tuple(span for part in parts for span in part)] if parts else []
                searching, failures = True, 0
                self._taken()
                continue
            if error.fate is ExportStatusCode.REFUSED:
                self._cut(parts, error)
                continue
            failures += 1
            self.suspects.failed()
            searching = searching and error.fate is ExportStatusCode.DOUBTFUL and failures <= _SEARCH_DEPTH
            if searching and (len(parts[-1]) > 1 or self._make_room()):
                self._cut(parts, error)
                continue
            self._failed(error)
            report()
            if last:
                return False
            if (
                error.fate is ExportStatusCode.DOUBTFUL
                and failures >= _DOUBTFUL_TRIES
                and self._set_aside(parts, error)
            ):
                return True
            self._pause(error.wait)
        return True

    def again(self, report: Callable[[], None]) -> None:
        """Send what was set aside once more, at the pace of an outage; for when there is nothing else to send."""
        if not self.suspects or time.monotonic() < self._again_at:
            return
        self._try_suspects()
        self._again_at = time.monotonic() + self._next_pause()
        report()

    def _send(self, spans: Sequence[Span]) -> ExportError | None:
        newest = max(span.end_unix_nano for span in spans)
        replayed = time.time_ns() - newest > _REPLAYED_NANO
        try:
            readable = [self._converter.readable(span, replayed=replayed) for span in spans]
        except Exception as error:  # noqa: BLE001  (a span that cannot be converted must not end the export)
            return ExportError(f"{type(error).__name__}: {error}"[:MAX_TEXT], ExportStatusCode.REFUSED)
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

    def _cut(self, parts: list[tuple[Span, ...]], error: ExportError) -> None:
        """Find the refused spans by halving, so that one bad span does not hold up the others."""
        part = parts.pop()
        if len(part) > 1:
            middle = len(part) // 2
            parts += (part[middle:], part[:middle])
        elif error.fate is ExportStatusCode.REFUSED:
            self._give_up(part[0], error.text)
        else:
            self.suspects.add(part[0], error.text)

    def _set_aside(self, parts: list[tuple[Span, ...]], error: ExportError) -> bool:
        """Set aside all that is left, if it is little: what comes next shows whose fault it is. Else part it."""
        if sum(map(len, parts)) + len(self.suspects) > _SET_ASIDE:
            _part(parts)
            return False
        for part in parts:
            for span in part:
                self.suspects.add(span, error.text)
        return True

    def _give_up(self, span: Span, error: str) -> None:
        self.refused += 1
        _log.warning("the trace backend refused a span", span=span.name, request=span.request_id, error=error)

    def _taken(self) -> None:
        """Note that the backend took others, and ask it about those that were set aside."""
        self._recovered()
        for suspect in self.suspects.taken():
            self._condemn(suspect)
        self._try_suspects()

    def _try_suspects(self) -> None:
        """Ask about some of those that were set aside; who is refused again goes to the end of the line."""
        for suspect in islice(self.suspects, _SUSPECTS_A_TIME):
            error = self._send((suspect.span,))
            if error is None:
                self._recovered()
                self.suspects.cleared(suspect)
            elif error.fate is ExportStatusCode.REFUSED:
                self.suspects.remove(suspect)
                self._give_up(suspect.span, error.text)
            elif error.fate is ExportStatusCode.DOUBTFUL:
                self.suspects.refused(suspect, error.text)
            else:
                self._failed(error)
                self.suspects.failed()
                return

    def _condemn(self, suspect: Suspect) -> None:
        self.suspects.remove(suspect)
        self._give_up(suspect.span, suspect.error)

    def _make_room(self) -> bool:
        """Give up one of too many, if it is they that are bad and not the backend."""
        worst = self.suspects.worst()
        if worst is not None and not self.suspects.room:
            self._condemn(worst)
        return self.suspects.room > 0

    def _tell(self, span: Span) -> None:
        if self._on_exported is None:
            return
        for entry in span.entries:
            self._on_exported(entry.source, entry.body, span.trace_id, span.span_id)

    def _pause(self, wait: float) -> None:
        # Not all agents of a fleet at once when their backend is back.
        self._stopping.wait(max(self._next_pause() * random.uniform(0.5, 1.0), wait))  # noqa: S311

    def _next_pause(self) -> float:
        pause, self._backoff = self._backoff, min(2 * self._backoff, _MAX_BACKOFF)
        return pause

    def _failed(self, error: ExportError) -> None:
        if not self._error:
            _log.warning("traces cannot be exported; they wait in the journal", error=error.text)
        self._error = error.text

    def _recovered(self) -> None:
        if self._error:
            _log.info("traces are exported again")
        self._error, self._backoff = "", _FIRST_BACKOFF


def _part(parts: list[tuple[Span, ...]]) -> None:
    """Let another part be the next one, half as large where that can be: one that can be taken is there, or none is."""
    part = parts.pop()
    middle = len(part) // 2
    halves = [part[middle:], part[:middle]] if middle else [part]
    random.shuffle(halves)
    parts[:0] = halves
