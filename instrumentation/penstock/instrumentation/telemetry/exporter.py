"""The exporter's thread: queues → batches → the agent, one batch in flight.

Importing this module is cheap; grpc and protobuf come with the thread. The order of
a stream is Hello, the agent's greeting with its watermark, then what lies beyond it.
A stream that does not answer within the deadline is given up and another is tried.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import entries_in, guard
from penstock.instrumentation.hooks import registry
from penstock.instrumentation.telemetry.batcher import BATCH_ENTRIES, NEVER, Batcher, overflowed
from penstock.instrumentation.telemetry.outbox import Outbox, Sealed, Watermark
from penstock.instrumentation.transport import BackgroundThread, Backoff, Message, Tag

if TYPE_CHECKING:
    from penstock.instrumentation.core import Settings
    from penstock.instrumentation.runtime import Runtime
    from penstock.instrumentation.telemetry.outbox import Counts
    from penstock.instrumentation.transport.grpc_stream import Ended, Stream
    from penstock.proto.v1.ingest_pb2 import Ack
    from penstock.proto.v1.snapshot_pb2 import Emitter as EmitterMessage

METHOD: Final = "/penstock.v1.Ingest/Publish"

ANSWER_DEADLINE: Final = 5.0
"""Seconds within which the agent greets, and acknowledges a batch."""

SNAPSHOT_INTERVAL: Final = 1.0

SNAPSHOT_REFUSED: Final = 60.0
"""Seconds without snapshots after the agent has called one invalid: the next would end the stream again."""

PROVEN: Final = 10.0
"""Seconds after which a stream counts as good, even if there was nothing to acknowledge."""

PATIENCE: Final = 10.0
"""Seconds without an agent until one line on the log says so; a sidecar often starts after its engine."""

logger = logging.getLogger("penstock")


class Exporter(BackgroundThread):
    """Sends what the emitter holds; owns the stream, the outbox and their clocks."""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        super().__init__("penstock-exporter")
        self._runtime = runtime
        self._settings = settings
        self._emitter = runtime.emitter
        self._collector = Batcher(runtime.emitter, self.ring)
        self._outbox = Outbox()
        self._backoff = Backoff()
        self._stream: Stream[Ack] | None = None
        self._identity = runtime.identity
        self._greeted = False
        self._in_flight = 0
        # True after the agent called something invalid: until the batch in flight has been judged alone, no snapshot
        # is sent, so that neither is given up for the other's fault.
        self._suspect = False
        self._answer_by = NEVER
        self._proven_at = NEVER
        self._connect_at = 0.0
        self._snapshot_at = 0.0
        self._snapshots_from = 0.0
        self._stopping = False
        self._stop_by = NEVER
        self._sent = 0
        self._flushes: list[threading.Event] = []
        # Entries that were settled in epochs before this one.
        self._forgotten = 0
        self._connections = 0
        self._complain_at = time.monotonic() + PATIENCE

    def finish(self, deadline: float) -> None:
        """Ask for the end, with all that is left and a goodbye, by *deadline* on the monotonic clock."""
        self._stop_by = deadline
        self.request_stop()

    def flush(self, seconds: float) -> bool:
        """Send what has been emitted so far at once, and wait until the agent has it, at most *seconds*.

        Tell whether it has. Without an agent it waits for nothing.
        """
        flushed = threading.Event()
        self.inbox.put(Message(Tag.FLUSH, content=flushed))
        return flushed.wait(seconds) and self._greeted

    # The inbox.

    def _wait(self, now: float) -> float:
        due = [self._answer_by, self._proven_at, self._stop_by]
        if self._stream is None:
            due.append(self._connect_at if self._runtime.identity.process else NEVER)
        elif self._greeted and not self._stopping:
            due.append(self._snapshot_at)
            if not self._in_flight:
                due.append(self._collector.flush_at)
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
        elif message.stream is not None and message.stream is self._stream:
            if message.tag is Tag.ANSWER:
                self._take_ack(message.content)
            else:
                self._take_end(message.content)

    def _tick(self, now: float) -> None:
        if now >= self._answer_by:
            self._fail(f"no answer within {ANSWER_DEADLINE:g} s")
        if now >= self._proven_at:
            self._prove()
        if self._stream is not None and self._identity != self._runtime.identity:
            self._close()
            self._connect_at = now
        if not self._stopping:
            self._collect(now)
        elif now >= self._stop_by or not self._runtime.identity.process:
            self.finished = True
            return
        if self._stream is None:
            self._connect(now)
        # Before the batch that goes with it: behind that, a stream that has not taken it yet would look like an agent that does not read.
        if now >= self._snapshot_at and self._greeted and not self._stopping:
            self._send_snapshot(now)
        self._send_next()
        if self._flushes and (not self._greeted or not (self._emitter.queued() or len(self._outbox))):
            while self._flushes:
                self._flushes.pop().set()

    # The link.

    def _connect(self, now: float) -> None:
        if now < self._connect_at or not self._runtime.identity.process:
            return
        self._connect_at = now + self._backoff.next()
        from penstock.instrumentation.transport.grpc_stream import Stream  # noqa: PLC0415
        from penstock.instrumentation.transport.hello import hello  # noqa: PLC0415  (not before the first emit)
        from penstock.proto.v1.ingest_pb2 import Ack, Batch  # noqa: PLC0415

        self._identity = self._runtime.identity
        self._connections += 1
        self._stream = Stream(self._settings.endpoint, METHOD, Ack.FromString, self.inbox)
        runtime = self._runtime
        greeting = Batch(
            epoch=runtime.epoch,
            hello=hello(self._identity, self._settings, runtime.born_ns, runtime.secret),
        )
        # By these the agent finds that it has lost what it had committed.
        greeting.hello.acknowledged = self._outbox.acknowledged
        greeting.hello.acknowledged_entries = max(
            0, self._settled(self._emitter.drops.look()) - self._forgotten
        )
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
        """Give the stream up and wait before the next."""
        self._close()
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = NEVER
            logger.warning(
                "penstock delivers nothing to the agent at %s: %s; vLLM is not affected, up to 32 MiB of entries are buffered",
                self._settings.endpoint,
                reason,
            )
        if now >= self._connect_at:  # else the attempt was short, and has named the time of the next
            self._connect_at = now + self._backoff.next()

    def _prove(self) -> None:
        self._backoff.reset()
        self._proven_at = NEVER
        self._complain_at = time.monotonic() + PATIENCE

    def _take_end(self, ended: Ended) -> None:
        in_flight, greeted = self._in_flight, self._greeted
        self._fail(ended.why)
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
                self._snapshots_from = now + SNAPSHOT_REFUSED
        elif self._suspect:
            self._outbox.reject()
            self._suspect = False
        else:
            self._suspect = True

    def _take_ack(self, ack: Ack) -> None:
        if ack.epoch != self._runtime.epoch:
            return
        self._runtime.pause("ingest", paused=ack.paused)
        if self._outbox.acknowledge(ack.durable_watermark) is Watermark.FOREIGN:
            self._outbox.restart()
            self._runtime.renew_epoch()
            self._in_flight = 0
            self._forgotten = self._settled(self._emitter.drops.look())
            self._fail("the agent has lost what it had committed; a new epoch begins")
            return
        now = time.monotonic()
        if not self._greeted:
            self._greeted = True
            self._answer_by = NEVER
            self._proven_at = now + PROVEN
            self._snapshot_at = max(now, self._snapshots_from)
        elif self._in_flight and ack.durable_watermark >= self._in_flight:
            self._in_flight = 0
            self._answer_by = NEVER
            if self._suspect:
                # Alone it was good: it was the snapshot beside it.
                self._suspect = False
                self._snapshot_at = self._snapshots_from = now + SNAPSHOT_REFUSED
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
        self._stream.send(frame(self._runtime.epoch, self._in_flight, batch))
        self._sent += 1
        self._answer_by = time.monotonic() + ANSWER_DEADLINE

    def _send_snapshot(self, now: float) -> None:
        self._snapshot_at = now + SNAPSHOT_INTERVAL
        # An agent that does not read gets no more of them, and a suspected batch is judged without.
        if self._stream is None or self._stream.backlog or self._suspect:
            return
        from penstock.instrumentation.telemetry.snapshot_limits import bound  # noqa: PLC0415  (not before the first emit)
        from penstock.instrumentation.telemetry.encoder import BATCH_BYTES  # noqa: PLC0415
        from penstock.proto.v1.ingest_pb2 import Batch  # noqa: PLC0415

        batch = Batch(epoch=self._runtime.epoch)
        snapshot = batch.snapshot
        snapshot.time_unix_nano = time.time_ns()
        snapshot.paused = self._runtime.paused
        self._describe(snapshot.emitter)
        registry.fill(snapshot)
        self._runtime.snapshots.collect(snapshot)
        lost = bound(snapshot)
        if lost:
            self._emitter.drops.add("oversize", "snapshot_row", lost)
        content = batch.SerializeToString()
        if len(content) > BATCH_BYTES:
            self._emitter.drops.add("oversize", "snapshot")
            return
        self._stream.send(content)

    def _describe(self, emitter: EmitterMessage) -> None:
        emitter.queued_entries = self._emitter.queued()
        emitter.unacknowledged_batches = len(self._outbox)
        emitter.unacknowledged_bytes = self._outbox.size
        emitter.sent_batches = self._sent
        emitter.reconnects = max(0, self._connections - 1)
        # One look for both numbers: entries are given up meanwhile.
        untold = self._emitter.drops.look()
        emitter.pending_entries = emitter.queued_entries + self._waiting(untold)
        emitter.produced_entries = emitter.pending_entries + self._settled(untold) - self._forgotten

    def _settled(self, untold: Counts) -> int:
        """Return how many entries the agent has or was told of, what is in flight on this stream included."""
        return self._collector.taken + overflowed(untold) - self._waiting(untold)

    def _waiting(self, untold: Counts) -> int:
        """Return how many of the entries that were taken from the queues, or given up, are in no batch that was sent."""
        in_flight = self._outbox.in_flight() if self._in_flight else None
        sent = in_flight[1].entries if in_flight is not None else 0
        return entries_in(untold) + self._outbox.entries - sent

    def _collect(self, now: float) -> None:
        free = self._greeted and not self._in_flight and not len(self._outbox)
        # A stream that is greeted has a snapshot a second, unless the agent has refused one: the next look comes by itself.
        watched = self._greeted and self._snapshot_at <= now + SNAPSHOT_INTERVAL
        for batch in self._collector.collect(
            now, free=free, accounts=now >= self._snapshot_at, hurry=bool(self._flushes), watched=watched
        ):
            self._outbox.append(batch)

    def _seal_the_rest(self) -> None:
        """Seal all that is left and a goodbye behind it."""
        from penstock.proto.v1.ingest_pb2 import Batch, Goodbye  # noqa: PLC0415  (not before the first emit)

        # What is emitted meanwhile by threads that do not know of the end may be lost, but not keep us here.
        for _ in range(-(-self._emitter.longest() // BATCH_ENTRIES) or 1):
            for batch in self._collector.seal():
                self._outbox.append(batch)
        self._outbox.append(Sealed(Batch(goodbye=Goodbye(reason="exit")).SerializeToString()))


class RejectedError(Exception):
    """The agent called a message of ours invalid; the text is the agent's."""
