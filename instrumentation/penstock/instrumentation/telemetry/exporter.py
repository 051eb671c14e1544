"""The exporter's thread: queues → batches → the agent, one batch in flight.

Importing this module is cheap; the thread imports grpc and protobuf. A stream begins
with the Hello and the agent's greeting with its watermark; then follow the batches
beyond it. A stream that does not answer within the deadline is closed and another
is tried.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants, guard, logger
from penstock.instrumentation.telemetry.batcher import BATCH_ENTRIES, NEVER, Batcher
from penstock.instrumentation.telemetry.entry_account import EntryAccount
from penstock.instrumentation.telemetry.outbox import Outbox, Sealed, Watermark
from penstock.instrumentation.telemetry.snapshots import SnapshotFeed
from penstock.instrumentation.transport import BackgroundThread, Backoff, Message, Tag
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from penstock.instrumentation.core import Session, Settings
    from penstock.instrumentation.telemetry.emitter import Emitter
    from penstock.instrumentation.telemetry.snapshots import Snapshots
    from penstock.instrumentation.transport import Stream, StreamEnd
    from penstock.proto.v1.ingest_pb2 import Ack

METHOD: Final = "/penstock.v1.Ingest/Publish"

ANSWER_DEADLINE: Final = 5.0
"""Seconds within which the agent greets, and acknowledges a batch."""

PROVEN: Final = 10.0
"""Seconds after which a stream counts as good, even if there was nothing to acknowledge."""

WARN_AFTER: Final = 10.0
"""Seconds without an agent until one warning is logged; a sidecar often starts after its engine."""


class Exporter(BackgroundThread):
    """Sends what the emitter holds; owns the stream, the outbox and their deadlines."""

    def __init__(self, session: Session, emitter: Emitter, snapshots: Snapshots, settings: Settings) -> None:
        """Make the exporter; :meth:`start` starts its thread.

        Args:
            session: of this process; an acknowledgement sets its kill switch and its rotation, and may begin a new epoch.
            emitter: the queues to drain.
            snapshots: the providers of the snapshot of each second.
            settings: of this process.

        """
        super().__init__("penstock-exporter")
        self._session = session
        self._settings = settings
        self._emitter = emitter
        self._batcher = Batcher(emitter, self.wake)
        self._outbox = Outbox()
        self._account = EntryAccount(emitter, self._batcher, self._outbox)
        self._snapshots = SnapshotFeed(session, snapshots, self._account, emitter.drops)
        self._backoff = Backoff()
        self._stream: Stream[Ack] | None = None
        self._identity = session.identity
        self._greeted = False
        self._in_flight = 0
        # True after the agent rejected a message: until the batch in flight has been answered alone, no snapshot is
        # sent, so that neither is dropped for the other's fault.
        self._suspect = False
        self._answer_by = NEVER
        self._proven_at = NEVER
        self._connect_at = 0.0
        # Since when this front end is out of rotation, nanoseconds; 0 while it is not.
        self._out_since = 0
        self._stopping = False
        self._stop_by = NEVER
        self._sent = 0
        self._flushes: list[threading.Event] = []
        self._connections = 0
        self._warn_at = time.monotonic() + WARN_AFTER

    def finish(self, deadline: float) -> None:
        """Ask the thread to send what is queued and, unless the process has failed, a Goodbye, and to end by *deadline* on the monotonic clock."""
        self._stop_by = deadline
        self.request_stop()

    def flush(self, seconds: float) -> bool:
        """Send what has been emitted so far, and wait at most *seconds* for the agent's acknowledgement.

        Returns whether there is a stream and the wait ended in time. Without an agent it returns at once.
        """
        flushed = threading.Event()
        self.inbox.put(Message(Tag.FLUSH, content=flushed))
        return flushed.wait(seconds) and self._greeted

    # The inbox.

    def _wait(self, now: float) -> float:
        due = [self._answer_by, self._proven_at, self._stop_by]
        if self._stream is None:
            due.append(self._connect_at if self._session.identity.process else NEVER)
        elif self._greeted and not self._stopping:
            due.append(self._snapshots.due_at)
            if not self._in_flight:
                due.append(self._batcher.flush_at)
        return min(due) - now

    def _handle(self, message: Message) -> None:
        if message.tag is Tag.STOP:
            if not self._stopping:
                self._stopping = True
                self._seal_the_rest()
            self._connect_at = 0.0
        elif message.tag is Tag.RESUME:
            self._connect_at = 0.0
        elif message.tag is Tag.FLUSH:
            self._flushes.append(message.content)
        elif message.sender is not None and message.sender is self._stream:
            if message.tag is Tag.ANSWER:
                self._on_ack(message.content)
            else:
                self._on_end(message.content)

    def _tick(self, now: float) -> None:
        if now >= self._answer_by:
            self._fail(f"no answer within {ANSWER_DEADLINE:g} s")
        if now >= self._proven_at:
            self._prove()
        if self._stream is not None and self._identity != self._session.identity:
            self._close()
            self._connect_at = now
        if self._greeted:
            self._snapshots.hurry(now, in_flight=bool(self._in_flight))
        if not self._stopping:
            self._collect(now)
        elif now >= self._stop_by or not self._session.identity.process:
            self.finished = True
            return
        if self._stream is None:
            self._connect(now)
        # Before the batch: behind it, the stream's backlog would look like an agent that does not read.
        self._send_snapshot(now)
        self._send_next()
        if self._flushes and (not self._greeted or not (self._emitter.queued() or len(self._outbox))):
            while self._flushes:
                self._flushes.pop().set()

    # The link.

    def _connect(self, now: float) -> None:
        if now < self._connect_at or not self._session.identity.process:
            return
        self._connect_at = now + self._backoff.next()
        from penstock.instrumentation.transport.hello import build_hello  # noqa: PLC0415  (not before the first emit)
        from penstock.proto.v1.ingest_pb2 import Ack, Batch  # noqa: PLC0415

        self._identity = self._session.identity
        self._connections += 1
        self._stream = self.streams.open(self._settings.endpoint, METHOD, Ack.FromString, self.inbox)
        session = self._session
        greeting = Batch(
            epoch=session.epoch,
            hello=build_hello(self._identity, self._settings, session.started_ns, session.secret),
        )
        # From these the agent finds that it has lost what it had committed.
        greeting.hello.acknowledged = self._outbox.acknowledged
        greeting.hello.acknowledged_entries = self._account.settled(in_flight=bool(self._in_flight))
        self._stream.send(greeting.SerializeToString())
        self._answer_by = time.monotonic() + ANSWER_DEADLINE

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        self._greeted = False
        self._in_flight = 0
        self._answer_by = self._proven_at = NEVER
        if stream is not None:
            stream.close()

    def _fail(self, reason: str) -> None:
        """Close the stream and schedule the next attempt."""
        self._close()
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = NEVER
            logger.warning(
                "penstock delivers nothing to the agent at %s: %s; vLLM is not affected, up to 32 MiB of entries are buffered",
                self._settings.endpoint,
                reason,
            )
        if now >= self._connect_at:  # else the attempt was short, and has set the time of the next
            self._connect_at = now + self._backoff.next()

    def _prove(self) -> None:
        self._backoff.reset()
        self._proven_at = NEVER
        self._warn_at = time.monotonic() + WARN_AFTER

    def _on_end(self, ended: StreamEnd) -> None:
        in_flight, greeted = self._in_flight, self._greeted
        self._fail(ended.reason)
        if self._stopping:
            self.finished = True
        if ended.code != "INVALID_ARGUMENT":
            if ended.code == "UNIMPLEMENTED":
                self._connect_at = time.monotonic() + self._backoff.longest()
            return
        guard.record("exporter.rejected", RejectedError(ended.details))
        if not in_flight or not greeted:
            # A snapshot, or the Hello.
            now = time.monotonic()
            self._connect_at = now + self._backoff.longest()
            if greeted:
                self._snapshots.on_rejected(now)
        elif self._suspect:
            self._outbox.reject()
            self._suspect = False
        else:
            self._suspect = True

    def _take_rotation(self, seconds: int) -> None:
        """Follow the agent's order for *seconds*, 0 for none, and tell where that changes what the readiness answers.

        An order that ended by itself, since the agent was away, is told once the agent is back, with the time of its end.
        """
        rotation = self._session.rotation
        ended = rotation.seconds_over()
        rotation.out_for(seconds)
        if not self._session.active:
            return
        now = time.time_ns()
        if self._out_since and (ended or not seconds):
            back = {"since_time_unix_nano": self._out_since}
            self._out_since = 0
            self._tell_rotation(back, now - round(ended * NANOS))
        if seconds and not self._out_since:
            self._out_since = now
            self._tell_rotation({"out": True}, now)

    def _tell_rotation(self, fields: dict[str, Any], time_ns: int) -> None:
        self._emitter.emit_event(
            "rotation_changed", fields, component=constants.COMPONENT_FRONTEND, time_ns=time_ns
        )

    def _on_ack(self, ack: Ack) -> None:
        if ack.epoch != self._session.epoch:
            return
        self._session.set_paused("ingest", paused=ack.paused)
        if self._identity.process == "api":
            # It outlives the stream: only time ends it where the agent does not.
            self._take_rotation(ack.out_of_rotation_seconds)
        if self._outbox.acknowledge(ack.durable_watermark) is Watermark.FOREIGN:
            self._outbox.restart()
            self._session.new_epoch()
            self._in_flight = 0
            self._account.begin_epoch()
            self._fail("the agent has lost what it had committed; a new epoch begins")
            return
        now = time.monotonic()
        if not self._greeted:
            self._greeted = True
            self._answer_by = NEVER
            self._proven_at = now + PROVEN
            self._snapshots.resume(now)
        elif self._in_flight and ack.durable_watermark >= self._in_flight:
            self._in_flight = 0
            self._answer_by = NEVER
            if self._suspect:
                # It was accepted alone: the snapshot beside it was at fault.
                self._suspect = False
                self._snapshots.on_rejected(now)
                self._snapshots.resume(now)
            self._prove()

    # What is sent.

    def _send_next(self) -> None:
        if not self._greeted or self._in_flight or self._stream is None:
            return
        head = self._outbox.head()
        if head is None:
            if self._stopping:
                self.finished = True
            return
        from penstock.instrumentation.telemetry.encoder import frame  # noqa: PLC0415  (not before the first emit)

        self._in_flight, batch = head
        self._stream.send(frame(self._session.epoch, self._in_flight, batch))
        self._sent += 1
        self._answer_by = time.monotonic() + ANSWER_DEADLINE

    def _send_snapshot(self, now: float) -> None:
        if now < self._snapshots.due_at or not self._greeted or self._stopping:
            return
        self._snapshots.skip(now)
        # None to an agent that does not read, and none beside a batch that is tried alone.
        if self._stream is None or self._stream.backlog or self._suspect:
            return
        content = self._snapshots.build(
            sent_batches=self._sent,
            reconnects=max(0, self._connections - 1),
            in_flight=bool(self._in_flight),
        )
        if content is not None:
            self._stream.send(content)

    def _collect(self, now: float) -> None:
        free = self._greeted and not self._in_flight and not len(self._outbox)
        # A greeted stream sends a snapshot a second unless the agent has rejected one, so the thread wakes by itself.
        polled = self._greeted and self._snapshots.runs(now)
        for batch in self._batcher.collect(
            now,
            free=free,
            snapshot_due=now >= self._snapshots.due_at,
            flush=bool(self._flushes),
            polled=polled,
        ):
            self._outbox.append(batch)

    def _seal_the_rest(self) -> None:
        """Seal what is queued, and a Goodbye behind it unless the process has failed: the agent then reports its loss."""
        from penstock.proto.v1.ingest_pb2 import Batch, Goodbye  # noqa: PLC0415  (not before the first emit)

        # Bounded: what other threads emit meanwhile may be lost, but must not delay the end.
        for _ in range(-(-self._emitter.longest() // BATCH_ENTRIES) or 1):
            for batch in self._batcher.seal():
                self._outbox.append(batch)
        if self._session.failed:
            return
        self._outbox.append(Sealed(Batch(goodbye=Goodbye(reason="exit")).SerializeToString()))


class RejectedError(Exception):
    """The agent rejected a message as invalid; the text is the agent's."""
