"""An agent's double on a real socket: follows the contract of Ingest and PolicyFeed, and misbehaves on demand.

It keeps what it committed over :meth:`FakeAgent.restart`, as the real one does. Run as a program
(``python -m tests.support.agent.fake_agent unix:///path``) it can be stopped by a signal.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from concurrent import futures
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from penstock.proto.v1 import ingest_pb2_grpc, policy_pb2_grpc
from penstock.proto.v1.ingest_pb2 import Ack, Batch
from penstock.proto.v1.policy_pb2 import Push

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.proto.v1.ingest_pb2 import Hello
    from penstock.proto.v1.policy_pb2 import Report
    from penstock.proto.v1.snapshot_pb2 import Snapshot

_END = object()


@dataclass
class Received:
    """All that one life of the agent's state holds."""

    log: dict[int, list[Batch]] = field(default_factory=dict)
    hellos: list[tuple[int, Hello]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def batches(self) -> list[Batch]:
        """Return all committed batches."""
        return [batch for batches in list(self.log.values()) for batch in list(batches)]

    def entries(self) -> list[tuple[str, str]]:
        """Return (kind, request id) of every committed entry."""
        found = []
        for batch in self.batches():
            found += [(event.WhichOneof("body"), event.request_id) for event in batch.events]
            found += [("transfer_sample", batch.strings[index]) for index in batch.transfers.request_id]
            found += [("probe_sample", batch.strings[index]) for index in batch.probes.request_id]
        return found

    def lost(self) -> dict[tuple[str, str], int]:
        """Return what the source reported as lost, by (reason, kind)."""
        total: dict[tuple[str, str], int] = {}
        for batch in self.batches():
            for drop in (*batch.drops, *batch.tombstone.lost):
                key = (drop.reason, drop.kind)
                total[key] = total.get(key, 0) + drop.count
        return total

    def guard_errors(self) -> dict[tuple[str, str], int]:
        """Return the guard errors that were reported, by (hook, error class)."""
        total: dict[tuple[str, str], int] = {}
        for batch in self.batches():
            for error in batch.guard_errors:
                key = (error.hook, error.error_class)
                total[key] = total.get(key, 0) + error.count
        return total


class FakeAgent(ingest_pb2_grpc.IngestServicer, policy_pb2_grpc.PolicyFeedServicer):
    """One agent on one address.

    Attributes:
        received: what it holds; replace it to lose its state.
        verdict: asked before a message is taken; a status code ends the stream with it.
        lose_ack: asked after a commit; True drops the stream in place of the acknowledgement.
        mute: send no greeting and no acknowledgement.
        out_of_rotation: seconds of the order in each acknowledgement.
        schedule: the push that a new subscriber gets first.

    """

    def __init__(self, listen: str) -> None:
        self.listen = listen
        self.received = Received()
        self.verdict: Callable[[Batch], grpc.StatusCode | None] = lambda _: None
        self.lose_ack: Callable[[Batch], bool] = lambda _: False
        self.mute = False
        self.paused = False
        self.out_of_rotation = 0
        self.streams = 0
        self.first_push: Push | None = None
        self._changed = threading.Condition()
        self._outs: dict[queue.SimpleQueue[Any], int] = {}
        self._watchers: dict[queue.SimpleQueue[Any], int] = {}
        self._server: grpc.Server | None = None

    def start(self) -> FakeAgent:
        """Listen."""
        server = grpc.server(futures.ThreadPoolExecutor(64), options=[("grpc.http2.max_ping_strikes", 0)])
        ingest_pb2_grpc.add_IngestServicer_to_server(self, server)
        policy_pb2_grpc.add_PolicyFeedServicer_to_server(self, server)
        server.add_insecure_port(self.listen)
        server.start()
        self._server = server
        return self

    def stop(self) -> None:
        """Cut all streams and go away."""
        server, self._server = self._server, None
        if server is None:
            return
        stopped = server.stop(None)
        for out in (*self._outs, *self._watchers):
            out.put(_END)
        stopped.wait(10)

    def restart(self) -> None:
        """Go away and come back with the same state."""
        self.stop()
        self.start()

    def drop_streams(self) -> None:
        """End all streams of engines, and stay."""
        for out in (*self._outs, *self._watchers):
            out.put(grpc.StatusCode.UNAVAILABLE)

    def pause(self, *, paused: bool) -> None:
        """Hold or lift the kill switch of the ingest streams."""
        self.paused = paused
        self._acknowledge_all()

    def take_out(self, seconds: int) -> None:
        """Order all sources out of rotation, from now on for *seconds*; 0 ends the order."""
        self.out_of_rotation = seconds
        self._acknowledge_all()

    def _acknowledge_all(self) -> None:
        for out, epoch in list(self._outs.items()):
            out.put(self._ack(epoch))

    def push(self, push: Push) -> None:
        """Send *push* to all subscribers; its nonce is filled in."""
        for out in list(self._watchers):
            self._watchers[out] += 1
            copy = Push()
            copy.CopyFrom(push)
            copy.nonce = self._watchers[out]
            out.put(copy)

    def wait(self, condition: Callable[..., object], what: str, deadline: float = 60.0) -> None:
        """Wait until *condition* holds; it is looked at after every message."""
        end = time.monotonic() + deadline
        with self._changed:
            while not condition():
                left = end - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"not within {deadline:g} s: {what}")
                self._changed.wait(min(left, 0.05))

    def Publish(self, request_iterator: Iterator[Batch], context: Any) -> Iterator[Ack]:  # noqa: N802
        """Serve one source."""
        self.streams += 1
        out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._take_all, args=(request_iterator, out), daemon=True).start()
        try:
            yield from self._answers(out, context)
        finally:
            self._outs.pop(out, None)

    def Watch(self, request_iterator: Iterator[Report], context: Any) -> Iterator[Push]:  # noqa: N802
        """Serve one EngineCore."""
        out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._report_all, args=(request_iterator, out), daemon=True).start()
        try:
            yield from self._answers(out, context)
        finally:
            self._watchers.pop(out, None)

    def _answers(self, out: queue.SimpleQueue[Any], context: Any) -> Iterator[Any]:
        while (item := out.get()) is not _END:
            if isinstance(item, grpc.StatusCode):
                context.abort(item, "as the test wants it")
            yield item

    def _take_all(self, requests: Iterator[Batch], out: queue.SimpleQueue[Any]) -> None:
        try:
            for batch in requests:
                self._take(batch, out)
                with self._changed:
                    self._changed.notify_all()
        except grpc.RpcError:
            pass
        finally:
            out.put(_END)

    def _take(self, batch: Batch, out: queue.SimpleQueue[Any]) -> None:
        refusal = self.verdict(batch)
        if refusal is not None:
            out.put(refusal)
            return
        if batch.seq:
            log = self.received.log.setdefault(batch.epoch, [])
            if batch.seq > len(log) + 1:
                out.put(grpc.StatusCode.FAILED_PRECONDITION)
                return
            if batch.seq == len(log) + 1:
                log.append(batch)
            if self.lose_ack(batch):
                out.put(grpc.StatusCode.UNAVAILABLE)
                return
        elif batch.HasField("hello"):
            self.received.hellos.append((batch.epoch, batch.hello))
            self._outs[out] = batch.epoch
        else:
            self.received.snapshots.append(batch.snapshot)
            return
        if not self.mute:
            out.put(self._ack(batch.epoch))

    def _ack(self, epoch: int) -> Ack:
        return Ack(
            epoch=epoch,
            durable_watermark=len(self.received.log.get(epoch, ())),
            paused=self.paused,
            out_of_rotation_seconds=self.out_of_rotation,
        )

    def _report_all(self, requests: Iterator[Report], out: queue.SimpleQueue[Any]) -> None:
        try:
            for report in requests:
                # Before the report is seen: who waits for it may push at once.
                if report.HasField("subscribe"):
                    self._watchers[out] = 0
                    if self.first_push is not None:
                        self._watchers[out] = 1
                        copy = Push()
                        copy.CopyFrom(self.first_push)
                        copy.nonce = 1
                        out.put(copy)
                self.received.reports.append(report)
                with self._changed:
                    self._changed.notify_all()
        except grpc.RpcError:
            pass
        finally:
            out.put(_END)


def main() -> None:
    """Serve until a signal ends the process."""
    FakeAgent(sys.argv[1]).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
