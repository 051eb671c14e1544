"""The gRPC service ``Ingest``: check, commit, acknowledge."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import structlog
from penstock.agent.aio import ByteSemaphore, TokenBucket
from penstock.agent.batch import BatchColumns
from penstock.agent.errors import ContractError, FullError, GapError, HeldError, LimitError, PenstockError
from penstock.agent.ingest.admission import SourceAdmission
from penstock.agent.ingest.loss_detector import SERVER_STOPPING, ServerStops
from penstock.agent.ingest.message_limits import ContractViolations, check_batch, check_hello, parse_message
from penstock.agent.ingest.stream import Ending, SourceStream
from penstock.agent.journal import journal_errors
from penstock.agent.model import EngineKey, Source
from penstock.agent.server.status_codes import abort_with
from penstock.proto.names import FRONT_END
from penstock.proto.v1.ingest_pb2 import DESCRIPTOR, Ack

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from penstock.agent.journal import Journal
    from penstock.agent.sources import LiveSource, Registry
    from penstock.proto.v1.ingest_pb2 import Hello

    Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]

_log = structlog.get_logger(__name__)

# What one source may send in the long run, and at once: several times what an engine can emit. Above it the next
# message is read later, so that one source that floods does not take the others' turn.
SOURCE_BYTES_PER_SECOND = 32 << 20
SOURCE_BURST_BYTES = 64 << 20
# Of messages that are parsed and not committed yet: they take five times as much. After an outage every engine sends
# batches of almost a mebibyte, all at once.
IN_HAND_BYTES = 8 << 20
# For a Hello to come and for an acknowledgement to be taken; a live sender does both at once.
_PEER_DEADLINE = 10.0
# A third of what a front end is told at once: two renewals may be late.
_RENEWAL_SECONDS = 20.0
_SILENT = f"the sender did not say hello, or take an acknowledgement, within {_PEER_DEADLINE:g} s"

_REASONS: dict[type[PenstockError], str] = {
    ContractError: "invalid",
    GapError: "out_of_order",
    FullError: "journal",
    HeldError: "held",
}


class PauseSource(Protocol):
    """The engines that `agentctl pause` has paused."""

    def is_paused(self, key: EngineKey) -> bool:
        """Return whether *key* is paused."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on the loop after every change; return the unsubscription."""


class RotationSource(Protocol):
    """The servers that an order takes out of rotation."""

    def seconds_out(self, server: str) -> int:
        """Return for how long a front end of *server* is to be out of rotation from now on; 0 for not at all."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* after every change, likewise."""


class LossWatcher(Protocol):
    """Detects the loss of sources.

    Attributes:
        stops: what servers have announced; sources of those are not lost.

    """

    stops: ServerStops

    def is_awaited(self, epoch: int) -> bool:
        """Return whether the source is away, and neither lost nor stopped yet."""

    def connected(self, epoch: int) -> None:
        """Stop waiting for the source: it has connected."""

    def away(self, source: Source) -> None:
        """Wait for the source: its stream has ended without a goodbye."""

    async def forgotten(self, source: Source, entries: int) -> None:
        """Count entries of the source that were acknowledged and are missing from the state."""


class IngestService:
    """Takes batches as bytes, so that the journal keeps each one as it came.

    Args:
        journal: where batches are committed before they are acknowledged.
        observe_ack: takes the seconds from a batch's arrival to its acknowledgement.
        source_admission: decides which source may come in.
        count_refused: called with the reason, a label value, for each refused message or stream.
        count_broken: called for each stream that ended without a goodbye, an announced stop, an error of ours or a
            wish of ours: its sender is gone, or gRPC refused a message itself, which looks the same from here.

    Attributes:
        refused: messages that broke the contract, and streams of processes that another one keeps out.

    """

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        pauses: PauseSource,
        rotation: RotationSource,
        losses: LossWatcher,
        observe_ack: Callable[[float], None],
        *,
        source_admission: SourceAdmission | None = None,
        count_refused: Callable[[str], None] = lambda _: None,
        count_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._pauses = pauses
        self._rotation = rotation
        self._losses = losses
        self._observe_ack = observe_ack
        self.refused = ContractViolations()
        self._source_admission = source_admission or SourceAdmission()
        self._admission = self._source_admission.admission
        self._count_refused = count_refused
        self._count_broken = count_broken
        self._in_processing = ByteSemaphore(IN_HAND_BYTES)
        self._streams: dict[int, SourceStream] = {}
        self._telling: set[asyncio.Task[None]] = set()
        # Streams whose Hello has not been taken yet.
        self._entering = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._unsubscribe = tuple(part.subscribe(self._orders_changed) for part in (pauses, rotation))

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that a server registers: bytes in, bytes out."""
        publish: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(self.publish)
        name = DESCRIPTOR.services_by_name["Ingest"].full_name
        return grpc.method_handlers_generic_handler(name, {"Publish": publish})

    async def drain(self, deadline: float) -> None:
        """End all streams, each after its current batch, within *deadline* seconds. Idempotent."""
        if not self._draining:
            self._draining = True
            for unsubscribe in self._unsubscribe:
                unsubscribe()
        for stream in self._streams.values():
            stream.end(Ending.DRAINING)
        try:
            async with asyncio.timeout(deadline):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("streams did not end in time", streams=len(self._streams))

    async def publish(self, _: object, context: Context) -> None:
        """Serve one stream; its errors become status codes."""
        try:
            stream = await self._enter(context)
            try:
                await self._serve(stream)
            except (PenstockError, TimeoutError):
                stream.refused = True
                raise
            finally:
                self._leave(stream)
        except PenstockError as error:
            self._count_refused(_reason(error))
            if isinstance(error, ContractError | HeldError):
                _log.warning("message refused", error=str(error))
                self.refused.note(str(error))
            await abort_with(context, error)
        except TimeoutError:
            self._count_refused("silent")
            await context.abort(grpc.StatusCode.UNAVAILABLE, _SILENT)
        if stream.ending in (Ending.REPLACED, Ending.OUSTED):
            await context.abort(grpc.StatusCode.ABORTED, stream.ending.value)
        if stream.ending is Ending.DRAINING:
            await context.abort(grpc.StatusCode.UNAVAILABLE, stream.ending.value)

    async def _enter(self, context: Context) -> SourceStream:
        """Handle the Hello: replace an older stream of the source, answer with the watermark."""
        if self._draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, Ending.DRAINING.value)
        self._admission.check_stream(self._entering + len(self._streams))
        self._entering += 1
        try:
            return await self._greet(context)
        finally:
            self._entering -= 1

    async def _greet(self, context: Context) -> SourceStream:
        async with asyncio.timeout(_PEER_DEADLINE):
            body = await context.read()
        if not isinstance(body, bytes):
            raise GapError("the stream ended before its Hello")
        self._admission.check_memory(len(body))
        batch = parse_message(body)
        if not batch.HasField("hello"):
            raise GapError("the stream does not begin with a Hello; send one with seq 0 first")
        check_batch(BatchColumns(batch, body), body)
        check_hello(batch.hello)
        source = Source.from_hello(batch.epoch, batch.hello)
        stream = self._admit(source, context, len(body))
        older = self._streams.get(source.epoch)
        self._streams[source.epoch] = stream
        self._idle.clear()
        if older is not None:
            older.end(Ending.REPLACED)
        try:
            # Before the wait for the disk: a loss that is written meanwhile would close the source that is here.
            self._losses.connected(source.epoch)
            watermark = await self._journal.open_source(source)
            if self._draining:
                stream.end(Ending.DRAINING)
            self._registry.connect(source, watermark)
            await self._compare(source, batch.hello, watermark)
            if batch.HasField("snapshot"):
                self._registry.snapshot(source.epoch, batch.snapshot)
            stream.greeted = True
            await self._acknowledge(stream, watermark)
        except BaseException:
            self._leave(stream)
            raise
        _log.info(
            "source connected",
            engine=str(source.key),
            process=source.process,
            rank=source.rank,
            epoch=source.epoch,
            watermark=watermark,
        )
        return stream

    def _admit(self, source: Source, context: Context, size: int) -> SourceStream:
        stream = SourceStream(source, context)
        live = self._registry.get(source.epoch)
        with journal_errors(self._journal.path):
            stream.hold = self._source_admission.admit(
                source, None if live is None else live.source, size, lambda: stream.end(Ending.OUSTED)
            )
        return stream

    async def _compare(self, source: Source, hello: Hello, watermark: int) -> None:
        """Detect that the state is older than what was acknowledged to the source."""
        if hello.acknowledged <= watermark:
            return
        live = self._registry.get(source.epoch)
        account = live.account if live is not None else None
        held = (
            hello.acknowledged_entries - hello.acknowledged + watermark if account is None else sum(account)
        )
        try:
            await self._losses.forgotten(source, max(1, hello.acknowledged_entries - held))
        except PenstockError as error:
            # It is counted no more: the source begins a new epoch.
            _log.warning("source loss not written", epoch=source.epoch, error=str(error))

    def _leave(self, stream: SourceStream) -> None:
        self._source_admission.leave(stream.hold, goodbye=stream.goodbye)
        epoch = stream.source.epoch
        stopped = stream.goodbye or self._losses.stops.covers(stream.source)
        if not (stopped or stream.refused or stream.ending):
            self._count_broken()
        if self._streams.get(epoch) is not stream:
            return
        del self._streams[epoch]
        if not self._streams:
            self._idle.set()
        self._registry.disconnect(epoch, said_goodbye=stopped)
        if not stream.goodbye and not self._draining:
            self._losses.away(stream.source)
        _log.info("source disconnected", engine=str(stream.source.key), epoch=epoch, goodbye=stream.goodbye)

    async def _serve(self, stream: SourceStream) -> None:
        pace = TokenBucket(SOURCE_BYTES_PER_SECOND, SOURCE_BURST_BYTES)
        while (body := await stream.next()) is not None:
            arrived = time.monotonic()
            async with self._in_processing.reserve(len(body)):
                watermark = await self._handle_message(stream, body)
            if watermark is not None:
                await self._acknowledge(stream, watermark)
                self._observe_ack(time.monotonic() - arrived)
            if (pause := pace.debt(len(body))) > 0:
                await asyncio.sleep(pause)

    async def _handle_message(self, stream: SourceStream, body: bytes) -> int | None:
        """Handle one message; return the watermark once it is committed, None for one without acknowledgement."""
        self._admission.check_memory(len(body))
        batch = parse_message(body)
        contents = BatchColumns(batch, body)
        check_batch(contents, body)
        epoch = stream.source.epoch
        if batch.epoch != epoch:
            raise ContractError(
                f"epoch is {batch.epoch}, the stream's Hello said {epoch}; open a stream for each"
            )
        if batch.seq == 0:
            if batch.HasField("hello"):
                raise ContractError("a second Hello arrived; a stream has exactly one")
            self._registry.snapshot(epoch, batch.snapshot)
            return self._journal.watermark(epoch) if self._rotation_is_due(stream) else None
        watermark = await self._journal.append(stream.source, batch, body, contents, ahead=True)
        stream.goodbye = stream.goodbye or batch.HasField("goodbye")
        if SERVER_STOPPING in contents.groups or batch.HasField("goodbye"):
            self._note_stop(stream.source, contents)
        return watermark

    def _note_stop(self, source: Source, contents: BatchColumns) -> None:
        """Note that a server stops: it has announced it, or its last front end says goodbye while the others are here.

        A front end whose EngineCore is gone says goodbye as well: that one is away by then, and lost.
        """
        stops, now, server = self._losses.stops, time.time_ns(), source.key.server
        others = self._others(source)
        if SERVER_STOPPING in contents.groups:
            stops.announce(server, max(contents.groups[SERVER_STOPPING].times), now)
        elif source.process == FRONT_END and not any(self._keeps_open(live) for live in others):
            stops.announce(server, now, now)
        else:
            return
        for live in others:
            if self._losses.is_awaited(live.source.epoch) and stops.covers(live.source):
                # Its connection ended before this came.
                self._registry.disconnect(live.source.epoch, said_goodbye=True)

    def _others(self, source: Source) -> list[LiveSource]:
        """Return the other sources of the same server."""
        return [
            live
            for live in self._registry.sources()
            if live.source.key.server == source.key.server and live.source.epoch != source.epoch
        ]

    def _keeps_open(self, live: LiveSource) -> bool:
        """Return whether the goodbye of another front end says nothing of the server: it has one more, or has lost a source."""
        if live.connected:
            return live.source.process == FRONT_END
        return self._losses.is_awaited(live.source.epoch)

    async def _acknowledge(self, stream: SourceStream, watermark: int) -> None:
        async with asyncio.timeout(_PEER_DEADLINE), stream.turn:
            stream.paused = self._pauses.is_paused(stream.source.key)
            stream.seconds_out, stream.told_at = self._seconds_out(stream), time.monotonic()
            ack = Ack(
                epoch=stream.source.epoch,
                durable_watermark=watermark,
                paused=stream.paused,
                out_of_rotation_seconds=stream.seconds_out,
            )
            await stream.context.write(ack.SerializeToString())

    def _seconds_out(self, stream: SourceStream) -> int:
        source = stream.source
        return self._rotation.seconds_out(source.key.server) if source.process == FRONT_END else 0

    def _rotation_is_due(self, stream: SourceStream) -> bool:
        """Return whether a front end has to be told that it goes out of rotation, still is, or comes back."""
        out = self._seconds_out(stream) > 0
        late = time.monotonic() - stream.told_at >= _RENEWAL_SECONDS
        return out is not (stream.seconds_out > 0) or (out and late)

    def _orders_changed(self) -> None:
        # Before the greeting the watermark is not known; the greeting says what is ordered.
        for stream in [each for each in self._streams.values() if each.greeted]:
            pause_changed = self._pauses.is_paused(stream.source.key) is not stream.paused
            if pause_changed:
                self._registry.kill_switch_changed(stream.source.epoch)
            if pause_changed or self._rotation_is_due(stream):
                telling = asyncio.ensure_future(self._send_orders(stream))
                self._telling.add(telling)
                telling.add_done_callback(self._telling.discard)

    async def _send_orders(self, stream: SourceStream) -> None:
        """Send the current watermark again, with what is ordered."""
        try:
            await self._acknowledge(stream, self._journal.watermark(stream.source.epoch))
        except Exception as error:  # noqa: BLE001  (a stream that cannot be written to is ending; its handler says why)
            _log.debug("orders not sent", epoch=stream.source.epoch, error=str(error))


def _reason(error: PenstockError) -> str:
    """Return the metric label of a refusal."""
    if isinstance(error, LimitError):
        return error.limit
    return next((word for kind, word in _REASONS.items() if isinstance(error, kind)), "error")
