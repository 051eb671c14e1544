"""The policy client's thread (EngineCore only): subscribes, applies pushes, sends the answers.

A policy stays in force without the agent, and its schedule runs down in the applier.
Importing this module is cheap; the thread imports grpc and protobuf.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import guard
from penstock.instrumentation.transport import BackgroundThread, Backoff, Message, Tag
from penstock.rules import NO_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue

    from penstock.instrumentation.core import Session, Settings
    from penstock.instrumentation.policy.applier import PolicyApplier
    from penstock.instrumentation.policy.stack_dump import StackDumper
    from penstock.instrumentation.transport import Stream, StreamEnd
    from penstock.proto.v1.policy_pb2 import Push, Report
    from penstock.proto.v1.snapshot_pb2 import Snapshot

METHOD: Final = "/penstock.v1.PolicyFeed/Watch"

PROVEN: Final = 10.0
"""Seconds after which a stream counts as good, even if no push came."""

_HOPELESS: Final = frozenset({"ABORTED", "INVALID_ARGUMENT", "PERMISSION_DENIED", "UNIMPLEMENTED"})
"""Status codes that another attempt will not change soon. ABORTED: another process subscribes under this name, and taking
the name back at once would make it do the same."""

_NEVER: Final = float("inf")


class PolicyClient(BackgroundThread):
    """Owns the Watch stream; the applier processes the pushes."""

    def __init__(
        self,
        session: Session,
        applier: PolicyApplier,
        settings: Settings,
        connect: Callable[[str, SimpleQueue[Message]], Stream[Push]] | None = None,
    ) -> None:
        """Make the client; :meth:`start` starts its thread.

        Args:
            session: of this process; a new epoch makes the client subscribe again.
            applier: applies the pushes, on this thread only.
            settings: of this process.
            connect: opens a stream to an endpoint, whose answers come into an inbox.

        """
        super().__init__("penstock-policy")
        self._session = session
        self._applier = applier
        self._settings = settings
        self._open_stream = connect or self._open
        self._ended: StreamEnd | None = None
        self._link_error = ""
        self._stream: Stream[Push] | None = None
        self._identity = session.identity
        self._backoff = Backoff()
        self._connect_at = 0.0
        self._proven_at = _NEVER
        self._nonce = 0
        self._heard = False
        self._stacks: StackDumper | None = None
        session.subscribe(self.resubscribe)

    def resubscribe(self) -> None:
        """Open a new stream, because the epoch has changed. From any thread."""
        self.inbox.put(Message(Tag.RECONNECT))

    def fill(self, snapshot: Snapshot) -> None:
        """Add the policy's status; ``kv_action`` and ``ec_action`` stay empty where vLLM's own configuration holds.

        It holds in a paused engine, also before a step has ended and the policy is out of force.
        """
        held_back = self._session.paused
        status, current = snapshot.policy, NO_POLICY if held_back else self._applier.in_force
        expires_in = None if held_back else self._applier.expires_in()
        status.hash = current.hash
        status.nonce = self._nonce
        status.connected = self._heard
        status.changed_time_unix_nano = self._applier.changed_ns
        if expires_in is not None:
            status.expires_time_unix_nano = time.time_ns() + int(expires_in * 1e9)
        if current.kv_load_failure and current.kv_load_failure.action:
            status.kv_action = current.kv_load_failure.action.value
        if current.ec_load_failure and current.ec_load_failure.action:
            status.ec_action = current.ec_load_failure.action.value
        status.last_error = self._link_error or self._applier.last_error

    # The inbox.

    def _wait(self, now: float) -> float:
        due = self._applier.due_in()
        if self._stream is not None:
            return min(due, self._proven_at - now)
        return min(due, self._connect_at - now) if self._session.identity.process else due

    def _handle(self, message: Message) -> None:
        if message.tag is Tag.STOP:
            self.finished = True
        elif message.tag in (Tag.RESUME, Tag.RECONNECT):
            self._close()
            self._connect_at = 0.0
        elif message.sender is not None and message.sender is self._stream:
            if message.tag is Tag.ANSWER:
                self._backoff.reset()
                self._on_push(message.content)
            else:
                self._on_end(message.content)

    def _tick(self, now: float) -> None:
        if self.finished:
            return
        self._send(self._applier.tick())
        if self._ended is not None:
            self._schedule_attempt(self._ended, now)
            self._ended = None
        if now >= self._proven_at:
            self._backoff.reset()
            self._proven_at = _NEVER
        if self._stream is not None and self._identity != self._session.identity:
            self._close()
            self._connect_at = now
        if self._stream is None and now >= self._connect_at and self._session.identity.process:
            self._connect(now)

    # The link.

    def _open(self, endpoint: str, inbox: SimpleQueue[Message]) -> Stream[Push]:
        from penstock.proto.v1.policy_pb2 import Push  # noqa: PLC0415  (protobuf)

        return self.streams.open(endpoint, METHOD, Push.FromString, inbox)

    def _connect(self, now: float) -> None:
        from penstock.instrumentation.transport.hello import engine_key, selector_labels  # noqa: PLC0415  (protobuf)
        from penstock.proto import SCHEMA_VERSION  # noqa: PLC0415
        from penstock.proto.v1.policy_pb2 import Report, Subscribe  # noqa: PLC0415

        identity = self._identity = self._session.identity
        self._connect_at = now + self._backoff.next()
        self._proven_at = now + PROVEN
        self._nonce = 0
        self._stream = self._open_stream(self._settings.endpoint, self.inbox)
        subscribe = Subscribe(
            schema_version=SCHEMA_VERSION,
            epoch=self._session.epoch,
            key=engine_key(identity, self._settings),
            model=identity.model,
            labels=selector_labels(identity, self._settings),
            hash_in_force=self._applier.hash,
            supported_fields=self._applier.sections,
            faults_allowed=self._settings.allow_faults,
            paused=self._applier.paused,
            secret=self._session.secret,
            takes_policy_names=True,
        )
        self._send(Report(subscribe=subscribe))

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        self._heard = False
        self._proven_at = _NEVER
        self._applier.forget_stream()
        if stream is not None:
            stream.close()

    def _on_end(self, ended: StreamEnd) -> None:
        self._close()
        self._ended = ended

    def _schedule_attempt(self, ended: StreamEnd, now: float) -> None:
        """Schedule the next attempt after the end of a stream."""
        hopeless = ended.code in _HOPELESS
        self._link_error = ended.reason if hopeless else ""
        if hopeless:
            self._connect_at = now + self._backoff.longest()
        elif now >= self._connect_at:  # else the attempt was short, and has set the time of the next
            self._connect_at = now + self._backoff.next()

    def _send(self, report: Report | None) -> None:
        if self._stream is not None and report is not None:
            self._stream.send(report.SerializeToString())

    def _on_push(self, push: Push) -> None:
        self._heard, self._link_error = True, ""
        if push.nonce <= self._nonce:
            return  # stale: a newer one has been applied already
        self._nonce = push.nonce
        if push.HasField("stacks"):
            # First: to apply the rest may take as long as a step that hangs.
            self._show_stacks(push.stacks.id)
        self._send(self._applier.apply(push))

    def _show_stacks(self, question: int) -> None:
        from penstock.instrumentation.policy.stack_dump import StackDumper  # noqa: PLC0415  (protobuf)

        with guard("stacks"):
            self._stacks = self._stacks or StackDumper(allowed=self._settings.allow_stacks)
            self._send(self._stacks.answer(question, self._identity.process))
