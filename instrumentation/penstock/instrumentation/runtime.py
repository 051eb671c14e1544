"""Penstock in this process: one object that hooks talk to, made anew in a child after a fork.

Importing this module is cheap; grpc and protobuf are imported by the exporter's
thread, when the first entry is emitted or :meth:`Runtime.start` is called.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import Identity, Session, grpc_objects, guard, logger, wait_for_grpc_to_end
from penstock.instrumentation.hooks import registry
from penstock.instrumentation.policy import ActivePolicy, PolicyApplier
from penstock.instrumentation.telemetry import QUEUE_CAPACITY, Emitter, Snapshots
from penstock.instrumentation.transport import CLOSE_WAIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.core import Settings
    from penstock.instrumentation.policy.client import PolicyClient
    from penstock.instrumentation.telemetry.exporter import Exporter
    from penstock.instrumentation.transport import BackgroundThread

START_AGAIN: Final = 512
"""Entries of one kind after which an exporter that could not be started is tried again."""

STOP_DEADLINE: Final = 1.0
"""Seconds that the end of the process may wait for the last batches; closing the streams has half a second more."""

LAST_WORDS_SECONDS: Final = 0.5
"""Seconds for which an exception that ends the engine waits for the agent's acknowledgement; 0 without an agent."""

FORK_DEADLINE: Final = 2.0
"""Seconds that a fork may wait for our threads to close their streams (about 10 ms is usual)."""


class Runtime:
    """What a hook needs, and the owner of the two threads. No method raises for a reason outside its caller.

    Methods may be called from any thread. Only :meth:`stop`, :meth:`flush` and :meth:`before_fork` wait, within
    a deadline.

    Attributes:
        active: whether hooks do anything; False while paused, stopped or off. Read it on every call.
        interruptions: how often :attr:`active` may have become False; two equal readings have no pause between them.
        session: the state that the runtime shares with its threads.
        snapshots: the providers of the snapshot of each second.
        policy: the policy in force.
        emitter: the queues of entries.

    """

    def __init__(self) -> None:
        self.active = False
        self.interruptions = 0
        self.session = Session(self._set_active)
        self.snapshots = Snapshots()
        self.policy = ActivePolicy()
        self.emitter = Emitter(self._wake)
        self.emit_event = self.emitter.emit_event
        self.emit_transfer = self.emitter.emit_transfer
        self.emit_probe = self.emitter.emit_probe
        self._lock = threading.RLock()
        self._exporter: Exporter | None = None
        self._policy_client: PolicyClient | None = None
        self._exit_registered = False
        self._fork_lock = threading.RLock()
        self._forks_clean = False
        self._grpc_stays = False
        # While a process forks: what none of its threads may destroy meanwhile.
        self._held: list[object] = []
        # Of all parents, for ever: destructors would talk to threads, or wait for them, that this process does not have.
        self._inherited: list[object] = []

    @property
    def settings(self) -> Settings | None:
        """The environment; None where Penstock is off."""
        return self.session.settings

    @property
    def identity(self) -> Identity:
        """Of this process; empty until :meth:`identify` is called."""
        return self.session.identity

    @property
    def paused(self) -> bool:
        """Whether the kill switch holds."""
        return self.session.paused

    def configure(self, settings: Settings | None) -> None:
        """Switch Penstock on with *settings*, or off with None."""
        self.session.configure(settings)

    def identify(
        self,
        *,
        process: str,
        key: str = "",
        role: str = "",
        model: str = "",
        vllm_version: str = "",
        rank: int = 0,
    ) -> None:
        """Say what this process is, before its first emit.

        Where one process holds several parts, it goes by the highest: ``engine-core``, then ``worker``, then ``api``.

        Args:
            process: ``api``, ``engine-core`` or ``worker``.
            key: vLLM's engine index (``"0"``); empty in the API process, which serves all engines.
            role: a guess (``prefill``, ``decode``, ``encoder``, ``both``); ``PENSTOCK_LABELS`` overrides it.
            model: the served model's name.
            vllm_version: of this vLLM.
            rank: of the worker.

        """
        found = Identity(
            process=process,
            engine=key,
            rank=rank,
            role=role,
            role_guessed=bool(role),
            model=model,
            vllm_version=vllm_version,
        )
        if self.session.identify(found):
            for thread in self._threads():
                thread.wake()

    def start(self) -> None:
        """Start the exporter now, so that an idle engine shows too. Call it when no fork follows."""
        with guard("runtime.start"):
            self._wake()

    def start_policy(self, fields: Iterable[str]) -> None:
        """Start the policy client (EngineCore only).

        Args:
            fields: what this engine acts upon, as dotted names of ``PolicyBody``: ``"ec_load_failure"`` for all of
                a message, ``"kv_load_failure.action"`` for one field. A push that sets anything else is refused.

        """
        with guard("runtime.start_policy"):
            self._wake()
            with self._lock:
                settings = self.session.settings
                if settings is None or self.session.off or self._policy_client is not None:
                    return
                from penstock.instrumentation.policy.client import PolicyClient  # noqa: PLC0415  (EngineCore only)

                applier = PolicyApplier(
                    self.session,
                    self.policy,
                    self.emit_event,
                    fields,
                    faults_allowed=settings.allow_faults,
                )
                client = PolicyClient(self.session, applier, settings)
                client.start()
                self._policy_client = client
                self.snapshots.add("policy", client.fill)

    def pause(self, by: str, *, paused: bool) -> None:
        """Set or clear the kill switch for one reason; any of them holds it."""
        self.session.set_paused(by, paused=paused)

    def stop(self, deadline: float = STOP_DEADLINE) -> None:
        """Send what is queued and a Goodbye within *deadline* seconds; hooks are passive from now on. Idempotent."""
        with self._lock:
            self.session.stop()
            exporter, self._exporter = self._exporter, None
            client, self._policy_client = self._policy_client, None
        with guard("runtime.stop"):
            by = time.monotonic() + deadline
            self.snapshots.remove("policy")
            if client is not None:
                client.request_stop()
            if exporter is not None:
                exporter.finish(by)
                exporter.join(by + CLOSE_WAIT - time.monotonic())
            if client is not None:
                client.join(by + CLOSE_WAIT - time.monotonic())

    def flush(self, seconds: float) -> None:
        """Deliver what has been emitted, waiting at most *seconds*: for a process that is about to be killed."""
        with guard("runtime.flush"):
            exporter = self._exporter
            if exporter is not None:
                exporter.flush(seconds)

    def before_fork(self) -> None:
        """Close all streams, so that the child inherits no thread of grpc; waits about 10 ms, at most two seconds.

        Without streams it does not wait: a fork of an engine where Penstock is off costs nothing.
        """
        deadline = time.monotonic() + FORK_DEADLINE
        self._forks_clean = self._fork_lock.acquire(timeout=FORK_DEADLINE)
        threads = self._threads()
        for thread in threads:
            thread.request_park()
        for thread in threads:
            self._forks_clean &= thread.wait_parked(deadline - time.monotonic())
        # With no stream of ours, or after it has been in vain, threads of grpc are the host's and will not end.
        patience = deadline if threads and not self._grpc_stays else 0.0
        grpc_ended = wait_for_grpc_to_end(patience)
        self._grpc_stays = (self._grpc_stays or bool(threads)) and not grpc_ended
        self._forks_clean &= grpc_ended
        # Not before: with the last of its objects, grpc ends.
        self._held = grpc_objects()

    def after_fork_in_parent(self) -> None:
        """Let the threads go on."""
        self._held = []
        for thread in self._threads():
            thread.resume()
        with contextlib.suppress(RuntimeError):  # the lock was not free within the deadline
            self._fork_lock.release()

    def after_fork_in_child(self) -> None:
        """Begin a new life with nothing of the parent's but its settings and installed hooks."""
        self._inherited += [*self._threads(), *self._held, *grpc_objects()]
        self._held = []
        self._exporter = self._policy_client = None
        self._exit_registered = False
        self._lock = threading.RLock()
        self._fork_lock = threading.RLock()
        self.emitter.reset()
        self.snapshots.reset()
        self.policy.reset()
        guard.reset()
        registry.reset_lock()
        forbidden = not self._forks_clean and self.session.settings is not None
        self.session.after_fork_in_child(grpc_forbidden=forbidden)
        if forbidden:
            logger.warning(
                "penstock is off in process %d: grpc was in use at its fork, and a child that uses it then may "
                "hang; VLLM_WORKER_MULTIPROC_METHOD=spawn avoids that",
                os.getpid(),
            )

    def _threads(self) -> list[BackgroundThread]:
        return [thread for thread in (self._policy_client, self._exporter) if thread is not None]

    def _set_active(self, active: bool) -> None:
        self.active = active
        if not active:
            self.interruptions += 1
        exporter = self._exporter
        if exporter is not None:
            # It reports a change of the kill switch.
            exporter.wake()

    def _wake(self) -> None:
        """Wake the exporter; start it if this is the first entry of the process."""
        exporter = self._exporter
        if exporter is None:
            with guard("runtime.start"):
                exporter = self._start_exporter()
        if exporter is not None:
            exporter.wake()
        elif not self.session.off:
            # The system had no thread left: try again after as many entries more, not at every entry.
            self.emitter.wake_threshold = min(self.emitter.longest() + START_AGAIN, QUEUE_CAPACITY)

    def _start_exporter(self) -> Exporter | None:
        with self._lock:
            settings = self.session.settings
            if settings is None or self.session.off or self._exporter is not None:
                return self._exporter
            from penstock.instrumentation.telemetry.exporter import Exporter  # noqa: PLC0415  (not before the first emit)

            exporter = Exporter(self.session, self.emitter, self.snapshots, settings)
            exporter.start()
            self._exporter = exporter
            self._register_exit()
            return exporter

    def _register_exit(self) -> None:
        if self._exit_registered:
            return
        self._exit_registered = True
        atexit.register(self.stop)
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            # A forked multiprocessing child leaves by os._exit and runs these instead of atexit's.
            util.Finalize(None, self.stop, exitpriority=10)


runtime = Runtime()
os.register_at_fork(
    before=runtime.before_fork,
    after_in_parent=runtime.after_fork_in_parent,
    after_in_child=runtime.after_fork_in_child,
)
