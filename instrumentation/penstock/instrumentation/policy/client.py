"""The policy client's thread (EngineCore only): subscribe, hand pushes to the desk, send its answers.

A policy stays in force whatever becomes of the agent, and its schedule runs down
here (``policy_desk.py``). Importing this module is cheap; grpc and protobuf come with the thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.policy.applier import PolicyApplier
from penstock.instrumentation.resilience import NO_POLICY
from penstock.instrumentation.transport import BackgroundThread, Backoff, Message, Tag

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from queue import SimpleQueue

    from penstock.instrumentation.core import Settings
    from penstock.instrumentation.runtime import Runtime
    from penstock.instrumentation.transport.grpc_stream import Ended, Stream
    from penstock.proto.v1.policy_pb2 import Push, Report
    from penstock.proto.v1.snapshot_pb2 import Snapshot

METHOD: Final = "/penstock.v1.PolicyFeed/Watch"

PROVEN: Final = 10.0
"""Seconds after which a stream counts as good even if nothing came."""

_HOPELESS: Final = frozenset({"ABORTED", "INVALID_ARGUMENT", "PERMISSION_DENIED", "UNIMPLEMENTED"})
"""Ends that another attempt will not change soon. ABORTED: another process subscribes under our name, and to take the
name back at once would only make it do the same."""

_NEVER: Final = float("inf")


class PolicyClient(BackgroundThread):
    """Owns the Watch stream; what is pushed is the desk's business."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        fields: Collection[str],
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[str, SimpleQueue[Message]], Stream[Push]] | None = None,
    ) -> None:
        """Make the client.

        Args:
            runtime: whose policy it changes.
            settings: of this process.
            fields: what this engine acts upon, as dotted names of ``PolicyBody``.
            clock: monotonic seconds, by which schedules run down.
            connect: opens a stream to an endpoint, whose answers come into an inbox.

        """
        super().__init__("penstock-policy")
        self._runtime = runtime
        self._settings = settings
        self._desk = PolicyApplier(runtime, fields, faults_allowed=settings.allow_faults, clock=clock)
        self._open_stream = connect or _connect
        self._ended: Ended | None = None
        self._refused_link = ""
        self._stream: Stream[Push] | None = None
        self._identity = runtime.identity
        self._backoff = Backoff()
        self._connect_at = 0.0
        self._proven_at = _NEVER
        self._nonce = 0
        self._heard = False

    def resubscribe(self) -> None:
        """Subscribe anew, because the epoch has changed."""
        self.inbox.put(Message(Tag.RECONNECT))

    def fill(self, snapshot: Snapshot) -> None:
        """Add the policy's status; ``kv_action`` and ``ec_action`` stay empty where vLLM's own configuration holds.

        It holds in a paused engine, also before a step has let the policy out.
        """
        held_back = self._runtime.paused
        status, current = snapshot.policy, NO_POLICY if held_back else self._runtime.policy.current
        expires_in = None if held_back else self._desk.expires_in()
        status.hash = current.hash
        status.nonce = self._nonce
        status.connected = self._heard
        status.changed_time_unix_nano = self._desk.changed_ns
        if expires_in is not None:
            status.expires_time_unix_nano = time.time_ns() + int(expires_in * 1e9)
        if current.kv_load_failure and current.kv_load_failure.action:
            status.kv_action = current.kv_load_failure.action.value
        if current.ec_load_failure and current.ec_load_failure.action:
            status.ec_action = current.ec_load_failure.action.value
        status.last_error = self._refused_link or self._desk.last_error

    # The inbox.

    def _wait(self, now: float) -> float:
        due = self._desk.due_in()
        if self._stream is not None:
            return min(due, self._proven_at - now)
        return min(due, self._connect_at - now) if self._runtime.identity.process else due

    def _handle(self, message: Message) -> None:
        if message.tag is Tag.STOP:
            self.finished = True
        elif message.tag in (Tag.RESUME, Tag.RECONNECT):
            self._close()
            self._connect_at = 0.0
        elif message.stream is not None and message.stream is self._stream:
            if message.tag is Tag.ANSWER:
                self._backoff.reset()
                self._take_push(message.content)
            else:
                self._take_end(message.content)

    def _tick(self, now: float) -> None:
        if self.finished:
            return
        self._send(self._desk.tick())
        if self._ended is not None:
            self._set_back(self._ended, now)
            self._ended = None
        if now >= self._proven_at:
            self._backoff.reset()
            self._proven_at = _NEVER
        if self._stream is not None and self._identity != self._runtime.identity:
            self._close()
            self._connect_at = now
        if self._stream is None and now >= self._connect_at and self._runtime.identity.process:
            self._connect(now)

    # The link.

    def _connect(self, now: float) -> None:
        from penstock.instrumentation.transport.hello import engine_key, labels  # noqa: PLC0415  (protobuf)
        from penstock.proto import SCHEMA_VERSION  # noqa: PLC0415
        from penstock.proto.v1.policy_pb2 import Report, Subscribe  # noqa: PLC0415

        identity = self._identity = self._runtime.identity
        self._connect_at = now + self._backoff.next()
        self._proven_at = now + PROVEN
        self._nonce = 0
        self._stream = self._open_stream(self._settings.endpoint, self.inbox)
        subscribe = Subscribe(
            schema_version=SCHEMA_VERSION,
            epoch=self._runtime.epoch,
            key=engine_key(identity, self._settings),
            model=identity.model,
            labels=labels(identity, self._settings),
            hash_in_force=self._desk.hash,
            supported_fields=self._desk.sections,
            faults_allowed=self._settings.allow_faults,
            paused=self._desk.paused,
            secret=self._runtime.secret,
        )
        self._send(Report(subscribe=subscribe))

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        self._heard = False
        self._proven_at = _NEVER
        self._desk.forget_stream()
        if stream is not None:
            stream.close()

    def _take_end(self, ended: Ended) -> None:
        self._close()
        self._ended = ended

    def _set_back(self, ended: Ended, now: float) -> None:
        """Decide when to connect again."""
        hopeless = ended.code in _HOPELESS
        self._refused_link = ended.why if hopeless else ""
        if hopeless:
            self._connect_at = now + self._backoff.longest()
        elif now >= self._connect_at:  # else the attempt was short, and has named the time of the next
            self._connect_at = now + self._backoff.next()

    def _send(self, report: Report | None) -> None:
        if self._stream is not None and report is not None:
            self._stream.send(report.SerializeToString())

    def _take_push(self, push: Push) -> None:
        self._heard, self._refused_link = True, ""
        if push.nonce <= self._nonce:
            return  # stale: a newer one has been taken already
        self._nonce = push.nonce
        self._send(self._desk.take(push))


def _connect(endpoint: str, inbox: SimpleQueue[Message]) -> Stream[Push]:
    from penstock.instrumentation.transport.grpc_stream import Stream  # noqa: PLC0415  (grpc)
    from penstock.proto.v1.policy_pb2 import Push  # noqa: PLC0415  (protobuf)

    return Stream(endpoint, METHOD, Push.FromString, inbox)
