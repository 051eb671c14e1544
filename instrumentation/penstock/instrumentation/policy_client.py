"""The policy client's thread (EngineCore only): subscribe, take pushes, put them in force, answer.

A policy stays in force whatever becomes of the agent, and its schedule runs down
here. Importing this module is cheap; grpc and protobuf come with the thread.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.backoff import Backoff
from penstock.instrumentation.constants import COMPONENT_SCHEDULER
from penstock.instrumentation.directives import NO_DIRECTIVES
from penstock.instrumentation.guard import guard
from penstock.instrumentation.policy_model import NO_POLICY
from penstock.instrumentation.policy_schedule import Schedule
from penstock.instrumentation.service import Message, Service, Tag

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.instrumentation.directives import Directives
    from penstock.instrumentation.policy_model import Policy
    from penstock.instrumentation.runtime import Runtime
    from penstock.instrumentation.settings import Settings
    from penstock.instrumentation.transport import Ended, Stream
    from penstock.proto.v1.policy_pb2 import Push
    from penstock.proto.v1.snapshot_pb2 import Snapshot

METHOD: Final = "/penstock.v1.PolicyFeed/Watch"

STEP_DEADLINE: Final = 30.0
"""Seconds that a push waits for a step to end; an engine that takes longer hangs."""

RETRY: Final = 1.0
"""Seconds until an entry of the schedule that no step let in is tried again."""

PROVEN: Final = 10.0
"""Seconds after which a stream counts as good even if nothing came."""

_NEVER: Final = float("inf")

logger = logging.getLogger("penstock")


class PolicyClient(Service):
    """Owns the Watch stream and the schedule; the only writer of the policy holder."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        fields: Collection[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the client.

        Args:
            runtime: whose policy it changes.
            settings: of this process.
            fields: what this engine acts upon, as dotted names of ``PolicyBody``.
            clock: monotonic seconds, by which schedules run down.

        """
        super().__init__("penstock-policy")
        self._runtime = runtime
        self._settings = settings
        self._fields = frozenset(fields)
        self._clock = clock
        self._schedule = Schedule((), clock())
        self._directives = NO_DIRECTIVES
        self._accepted: Policy = NO_POLICY
        self._paused = False
        self._stream: Stream[Push] | None = None
        self._identity = runtime.identity
        self._backoff = Backoff()
        self._connect_at = 0.0
        self._proven_at = _NEVER
        self._nonce = 0
        self._heard = False
        self._changed_ns = 0
        self._last_error = ""

    def resubscribe(self) -> None:
        """Subscribe anew, because the epoch has changed."""
        self.inbox.put(Message(Tag.RECONNECT))

    def fill(self, snapshot: Snapshot) -> None:
        """Add the policy's status; ``kv_action`` and ``ec_action`` stay empty where vLLM's own configuration holds."""
        status, current, ends = (
            snapshot.policy,
            self._runtime.policy.current,
            self._schedule.at(self._clock()).ends,
        )
        status.hash = current.hash
        status.nonce = self._nonce
        status.connected = self._heard
        status.changed_time_unix_nano = self._changed_ns
        if ends is not None:
            status.expires_time_unix_nano = time.time_ns() + int((ends - self._clock()) * 1e9)
        if current.kv_load_failure and current.kv_load_failure.action:
            status.kv_action = current.kv_load_failure.action.value
        if current.ec_load_failure and current.ec_load_failure.action:
            status.ec_action = current.ec_load_failure.action.value
        status.last_error = self._last_error

    # The inbox.

    def _wait(self, now: float) -> float:
        step = self._schedule.at(self._clock())
        until_end = _NEVER if step.ends is None else step.ends - self._clock()
        if step.policy is not self._accepted:
            until_end = min(until_end, RETRY)
        if self._stream is not None:
            return min(until_end, self._proven_at - now)
        return min(until_end, self._connect_at - now) if self._runtime.identity.process else until_end

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
        self._run_down()
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
        from penstock.instrumentation.hello import engine_key, labels  # noqa: PLC0415  (protobuf)
        from penstock.instrumentation.transport import Stream  # noqa: PLC0415  (grpc)
        from penstock.proto import SCHEMA_VERSION  # noqa: PLC0415
        from penstock.proto.v1.policy_pb2 import Push, Subscribe  # noqa: PLC0415

        identity = self._identity = self._runtime.identity
        self._connect_at = now + self._backoff.next()
        self._proven_at = now + PROVEN
        self._nonce = 0
        self._stream = Stream(self._settings.endpoint, METHOD, Push.FromString, self.inbox)
        subscribe = Subscribe(
            schema_version=SCHEMA_VERSION,
            epoch=self._runtime.epoch,
            key=engine_key(identity, self._settings),
            model=identity.model,
            labels=labels(identity, self._settings),
            hash_in_force=self._accepted.hash,
            supported_fields=sorted({name.partition(".")[0] for name in self._fields}),
            faults_allowed=self._settings.allow_faults,
            paused=self._paused,
        )
        self._send(subscribe=subscribe)

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        self._heard = False
        self._proven_at = _NEVER
        if stream is not None:
            stream.close()

    def _take_end(self, ended: Ended) -> None:
        self._close()
        hopeless = ended.code in ("INVALID_ARGUMENT", "UNIMPLEMENTED", "PERMISSION_DENIED")
        if hopeless:
            self._last_error = repr(ended)
        now = time.monotonic()
        if hopeless:
            self._connect_at = now + self._backoff.longest()
        elif now >= self._connect_at:  # else the attempt was short, and has named the time of the next
            self._connect_at = now + self._backoff.next()

    def _send(self, **report: Any) -> None:
        from penstock.proto.v1.policy_pb2 import Report  # noqa: PLC0415  (protobuf)

        if self._stream is not None:
            self._stream.send(Report(**report).SerializeToString())

    # The policy.

    def _take_push(self, push: Push) -> None:
        from penstock.instrumentation.directives_decode import decode_directives  # noqa: PLC0415  (protobuf)
        from penstock.instrumentation.policy_decode import RefusedError, decode  # noqa: PLC0415
        from penstock.proto.v1.policy_pb2 import PolicyAck  # noqa: PLC0415

        received_ns = time.time_ns()
        self._heard = True
        self._nonce = push.nonce
        if push.paused:
            # Whatever else is in it: the kill switch is never refused.
            self._runtime.pause("policy", paused=True)
        try:
            schedule = Schedule(decode(push, self._fields), self._clock())
            directives = decode_directives(
                push, faults_allowed=self._settings.allow_faults, now_ns=time.monotonic_ns()
            )
        except Exception as error:  # noqa: BLE001  (a bug of ours in reading it is answered too, not looped over)
            # The switch is refused in neither direction: held, or lifted to the last good policy.
            self._put_in_force(self._schedule, self._directives, push.paused, received_ns)
            if isinstance(error, RefusedError):
                self._refuse(push, error.field, str(error), received_ns)
            else:
                guard.record(self.name, error)
                self._refuse(push, "", f"this engine failed to read the push: {error!r:.200}", received_ns)
            return
        if not self._put_in_force(schedule, directives, push.paused, received_ns):
            text = f"no step of the engine ended within {STEP_DEADLINE:g} s; it hangs"
            self._refuse(push, "", text, received_ns)
            return
        self._last_error = ""
        self._send(ack=PolicyAck(nonce=push.nonce, hash=self._accepted.hash, paused=self._paused))

    def _refuse(self, push: Push, field: str, error: str, received_ns: int) -> None:
        from penstock.proto.v1.policy_pb2 import PolicyNack  # noqa: PLC0415  (protobuf)

        self._last_error = error
        logger.warning("penstock refused a policy: %s", error)
        hash_refused = push.schedule[0].hash if push.schedule else ""
        self._note(hash_refused, self._runtime.policy.current.hash, "push", received_ns, error)
        self._send(
            nack=PolicyNack(nonce=push.nonce, field=field, error=error, hash_in_force=self._accepted.hash)
        )

    def _put_in_force(
        self, schedule: Schedule, directives: Directives, paused: bool, received_ns: int
    ) -> bool:
        """Put what *schedule* says for now in force, or nothing while paused; False if no step ended in time."""
        accepted = schedule.at(self._clock()).policy
        previous = self._runtime.policy.current
        if not self._swap(
            NO_POLICY if paused else accepted, directives=NO_DIRECTIVES if paused else directives
        ):
            return False
        cause = "push" if paused == self._paused else ("pause" if paused else "resume")
        self._schedule, self._directives = schedule, directives
        self._accepted, self._paused = accepted, paused
        self._runtime.pause("policy", paused=paused)
        current = self._runtime.policy.current
        if current != previous or cause != "push":
            self._note(current.hash, previous.hash, cause, received_ns)
        return True

    def _run_down(self) -> None:
        """Move on to the next entry of the schedule, if the present one has ended."""
        due = self._schedule.at(self._clock()).policy
        if due is self._accepted:
            return
        previous = self._runtime.policy.current
        if not self._swap(NO_POLICY if self._paused else due):
            self._last_error = f"no step of the engine ended within {STEP_DEADLINE:g} s; it hangs"
            return
        self._accepted = due
        if not self._paused:
            self._note(due.hash, previous.hash, "expiry", 0)
        from penstock.proto.v1.policy_pb2 import PolicyMoved  # noqa: PLC0415  (protobuf)

        self._send(moved=PolicyMoved(hash=due.hash))

    def _swap(self, policy: Policy, directives: Directives | None = None) -> bool:
        holder = self._runtime.policy
        changed = policy != holder.current
        if not changed and directives in (None, holder.directives):
            return True
        if not holder.swap(policy, STEP_DEADLINE, directives):
            return False
        if changed:
            self._changed_ns = time.time_ns()
        return True

    def _note(self, hash_: str, previous: str, cause: str, received_ns: int, error: str = "") -> None:
        fields = {
            "hash": hash_,
            "previous_hash": previous,
            "accepted": not error,
            "error": error,
            "cause": cause,
            "received_time_unix_nano": received_ns,
        }
        self._runtime.emit_event("policy_applied", fields, component=COMPONENT_SCHEDULER)
