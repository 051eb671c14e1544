"""The trace export: a thread that reads the log and sends finished spans, at its own pace.

Nothing is queued in memory: while the backend is away the thread waits, and the journal keeps the
entries. Without an endpoint the cursor follows the end of the log, so that an endpoint that is configured
later gets the traces from then on and not a disk full of old ones.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import StateError
from penstock.agent.traces.assembly import AssemblyLimits, Sampler
from penstock.agent.traces.export.journal_tail import JournalTail
from penstock.agent.traces.export.status import ExportStatus
from penstock.agent.traces.spans import no_policies

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.journal import Journal, Reader
    from penstock.agent.model import Source
    from penstock.agent.traces.export.delivery import Delivery, OnExported
    from penstock.agent.traces.export.otlp_client import OtlpClient
    from penstock.agent.traces.export.otlp_config import ExportSettings
    from penstock.agent.traces.spans import PolicyLookup

_log = structlog.get_logger(__name__)

CURSOR = "traces"

# Seconds between two looks at the log, and while the agent ends.
_POLL_SECONDS = 0.25
_DRAIN_POLL_SECONDS = 0.05
# Seconds between two writes of the cursor while nothing is exported.
_FOLLOW_SECONDS = 5.0
# Seconds of a pause after an error; then the export begins again at the cursor.
_AGAIN_SECONDS = 5.0
# Seconds within which a call that is interrupted returns.
_INTERRUPT_SECONDS = 1.0


class TraceExporter:
    """Exports the journal's traces from a thread of its own.

    Args:
        journal: read through a reader of its own; keeps the cursor.
        settings: where spans go.
        on_exported: called on the thread with (source, event or transfer, trace id, span id) for each
            entry of the log whose span was delivered. It must be quick and not raise.
        observe: called on the thread with the seconds of each call to the backend.
        sample_ratio: ``traceSampleRatio`` of a source's engine; None where no policy sets it.
        described: returns a source with the role of its engine; called on the thread.
        policies: names the policies behind a span's hash.
        limits: bounds of the assembling.

    Raises:
        ConfigError: an ``OTEL_EXPORTER_OTLP_*`` variable is wrong.

    """

    def __init__(
        self,
        journal: Journal,
        settings: ExportSettings,
        *,
        on_exported: OnExported | None = None,
        observe: Callable[[float], None] = lambda _seconds: None,
        sample_ratio: Callable[[Source], float | None] = lambda _source: None,
        described: Callable[[Source], Source] = lambda source: source,
        policies: PolicyLookup = no_policies,
        limits: AssemblyLimits | None = None,
    ) -> None:
        self._journal = journal
        sampler = Sampler.named(settings.sampler, settings.sampler_ratio)
        self._sampler: Callable[[Source], Sampler] = lambda source: sampler.with_policy(sample_ratio(source))
        self._poll_seconds = settings.schedule_delay or _POLL_SECONDS
        self._spans_a_call = settings.batch_size
        self._policies = policies
        self._limits = limits or AssemblyLimits()
        self._stopping = threading.Event()
        self._deadline = 0.0
        self._backend: OtlpClient | None = None
        self._delivery: Delivery | None = None
        if settings.endpoint:
            # Imported here: an agent without an endpoint needs nothing of OpenTelemetry's SDK.
            from penstock.agent.traces.export.delivery import Delivery  # noqa: PLC0415
            from penstock.agent.traces.export.otlp_client import OtlpClient  # noqa: PLC0415
            from penstock.agent.traces.spans.sdk_spans import SpanConverter  # noqa: PLC0415

            self._backend = OtlpClient(settings)
            self._delivery = Delivery(
                self._backend, self._stopping, on_exported, observe, SpanConverter(described)
            )
        self._saved: tuple[int, int] | None = None
        self._status = ExportStatus(endpoint=settings.shown_endpoint)
        self._thread = threading.Thread(target=self._run, name="penstock-traces", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline: float) -> None:
        """Deliver what the log holds and end; blocks for *deadline* seconds and about one more at most.

        What is not delivered then is delivered after the next start. Call it when nothing is appended
        any more and before the journal is closed. Idempotent.
        """
        self._deadline = time.monotonic() + deadline
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(deadline)
            if self._thread.is_alive() and self._backend is not None:
                self._backend.interrupt()
            self._thread.join(_INTERRUPT_SECONDS)
        if self._backend is not None:
            self._backend.close()

    def status(self) -> ExportStatus:
        """Return the state of the export; from any thread."""
        return self._status

    def _run(self) -> None:
        # `_saved` is where to begin again: the cursor that is queued may not be written yet.
        while True:
            try:
                with self._journal.reader() as reader:
                    if self._delivery is None:
                        self._follow_end(reader)
                    else:
                        self._export(reader, self._delivery)
            except (sqlite3.Error, StateError) as error:
                _log.warning("the trace export cannot read the journal", error=str(error))
                self._status = replace(self._status, error=f"the journal cannot be read: {error}")
            except Exception as error:  # noqa: BLE001  (a bug of ours must not end the export without a word)
                _log.exception("internal error: the trace export restarts")
                self._status = replace(self._status, error=f"{type(error).__name__}: {error}")
            if self._stopping.wait(_AGAIN_SECONDS):
                return

    def _follow_end(self, reader: Reader) -> None:
        while not self._stopping.is_set():
            last = reader.last()
            self._save(last + 1, last)
            self._status = replace(self._status, error="", low=last + 1, exported=last, position=last)
            self._stopping.wait(_FOLLOW_SECONDS)

    def _export(self, reader: Reader, delivery: Delivery) -> None:
        tail = JournalTail(
            reader,
            delivery,
            self._saved or reader.cursor(CURSOR),
            sampler=self._sampler,
            policies=self._policies,
            limits=self._limits,
            spans_a_call=self._spans_a_call,
            on_progress=self._on_progress,
        )
        while True:
            # Looked at before the log is read: what is there when the end comes is read.
            stopping = self._stopping.is_set()
            more = tail.step()
            if more is None:
                return
            if more:
                continue
            if not stopping:
                self._stopping.wait(self._poll_seconds)
            elif tail.closing and time.monotonic() < self._deadline:
                time.sleep(_DRAIN_POLL_SECONDS)
            else:
                return

    def _on_progress(self, tail: JournalTail) -> None:
        delivery = self._delivery
        self._save(tail.low, tail.exported)
        self._status = replace(
            self._status,
            error="" if delivery is None else delivery.error,
            low=tail.low,
            exported=tail.exported,
            position=tail.position,
            oldest_unexported_unix_nano=tail.oldest_unexported_unix_nano,
            spans_exported=0 if delivery is None else delivery.delivered,
            spans_refused=0 if delivery is None else delivery.refused,
            spans_sampled_out=tail.sampled_out,
            skipped=tail.skipped,
            given_up=tail.given_up,
        )

    def _save(self, low: int, exported: int) -> None:
        if (low, exported) != self._saved:
            self._saved = (low, exported)
            self._journal.save_cursor(CURSOR, low, exported)
