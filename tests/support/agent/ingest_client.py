"""A client of Ingest that keeps the sender's side of the contract, for tests."""

from __future__ import annotations

import queue
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
from penstock.proto import SCHEMA_VERSION
from penstock.proto.v1.common_pb2 import ROLE_DECODE, EngineKey
from penstock.proto.v1.ingest_pb2 import Ack, Batch, Goodbye, Hello
from penstock.proto.v1.ingest_pb2_grpc import IngestStub

from tests.support.agent.batches import add_transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from penstock.proto.v1.common_pb2 import Role
    from penstock.proto.v1.events_pb2 import Event
    from penstock.proto.v1.snapshot_pb2 import Snapshot

DEADLINE = 60.0


class FakeEngine:
    """One source. Calls block until the agent has answered.

    A batch stays in ``unacknowledged`` until it is acknowledged; :meth:`connect` resends what lies beyond the
    greeting's watermark. Every grpc.RpcError of the stream is raised by the call that meets it.
    """

    def __init__(
        self,
        address: str,
        *,
        engine: str = "0",
        server: str = "",
        process: str = "engine-core",
        role: Role = ROLE_DECODE,
        model: str = "tiny",
        labels: dict[str, str] | None = None,
        epoch: int | None = None,
        rank: int = 0,
        secret: bytes = b"",
    ) -> None:
        self.address = address
        self.epoch = random.getrandbits(63) + 1 if epoch is None else epoch
        self.hello = Hello(
            schema_version=SCHEMA_VERSION,
            key=EngineKey(server=server, engine=engine),
            process=process,
            rank=rank,
            pid=4711,
            start_time_unix_nano=time.time_ns(),
            penstock_version="test",
            vllm_version="0.32.0",
            model=model,
            role=role,
            labels=labels or {},
            secret=secret,
        )
        self.sent = 0
        self.acknowledged = 0
        self.paused = False
        self.unacknowledged: dict[int, Batch] = {}
        self._changed = threading.Condition()
        self._acks: list[Ack] = []
        self._error: grpc.RpcError | None = None
        self._outgoing: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._channel: grpc.Channel | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Connect."""
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        """Go away without a goodbye."""
        self.disconnect()

    def connect(self) -> int:
        """Open a stream, say hello, resend what is not acknowledged; returns the greeting's watermark."""
        self.disconnect()
        self._acks, self._error, self._outgoing = [], None, queue.SimpleQueue()
        self._channel = grpc.insecure_channel(self.address)
        call = IngestStub(self._channel).Publish(iter(self._outgoing.get, None), wait_for_ready=False)
        self._reader = threading.Thread(target=self._read, args=(call,), daemon=True)
        self._reader.start()
        self.send(Batch(epoch=self.epoch, hello=self.hello))
        self.wait(lambda: self._acks, "the greeting")
        watermark = self._acks[0].durable_watermark
        for batch in [batch for seq, batch in self.unacknowledged.items() if seq > watermark]:
            self._deliver(batch)
        return watermark

    def disconnect(self) -> None:
        """Close the stream without a goodbye."""
        self._outgoing.put(None)
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._reader is not None:
            self._reader.join(DEADLINE)
            self._reader = None

    def _read(self, call: Iterator[Ack]) -> None:
        try:
            for ack in call:
                with self._changed:
                    self._acks.append(ack)
                    self.paused = ack.paused
                    self.acknowledged = max(self.acknowledged, ack.durable_watermark)
                    for seq in [seq for seq in self.unacknowledged if seq <= ack.durable_watermark]:
                        del self.unacknowledged[seq]
                    self._changed.notify_all()
        except grpc.RpcError as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def wait(self, condition: Callable[[], object], what: str, deadline: float = DEADLINE) -> None:
        """Wait until *condition* holds or the stream fails (raised)."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._error is not None, deadline)
            if condition():
                return
            if self._error is not None:
                raise self._error
        raise AssertionError(f"not within {deadline:g} s: {what}")

    def failure(self, deadline: float = DEADLINE) -> grpc.StatusCode:
        """Wait until the stream fails; returns its status code."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None, deadline)
        assert self._error is not None, "the stream did not fail"
        return self._error.code()

    def send(self, batch: Batch) -> None:
        """Send a message as it is, without a number and without waiting."""
        self._outgoing.put(batch)

    def publish(self, *events: Event, transfers: Sequence[str] = (), **fields: Any) -> int:
        """Send the next batch and wait for its acknowledgement; returns its number.

        Args:
            events: events of the batch.
            transfers: request ids; each gets one good transfer sample.
            fields: further fields of the Batch.

        """
        batch = Batch(events=events, **fields)
        if transfers:
            add_transfers(batch, transfers)
        return self.publish_batch(batch)

    def publish_batch(self, batch: Batch) -> int:
        """Send *batch* under the next number and wait for its acknowledgement; returns the number."""
        batch.epoch, batch.seq = self.epoch, self.sent + 1
        self.sent += 1
        self.unacknowledged[batch.seq] = batch
        self._deliver(batch)
        return batch.seq

    def _deliver(self, batch: Batch) -> None:
        self.send(batch)
        self.wait(lambda: self.acknowledged >= batch.seq, f"the acknowledgement of {batch.seq}")

    def snapshot(self, snapshot: Snapshot) -> None:
        """Send a snapshot; nothing answers it."""
        self.send(Batch(epoch=self.epoch, snapshot=snapshot))

    def goodbye(self, reason: str = "exit") -> None:
        """End on purpose and wait until that is acknowledged."""
        self.publish(goodbye=Goodbye(reason=reason))
        self.disconnect()
