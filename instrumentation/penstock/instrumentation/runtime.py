"""Penstock in this process: one object that hooks talk to, made anew in a child after a fork.

Importing this module is cheap; grpc and protobuf are imported by the exporter's
thread, when the first entry is emitted or :meth:`Runtime.start` is called.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import (
    PRECEDENCE,
    Identity,
    guard,
    new_epoch,
    new_secret,
    wait_for_grpc_to_end,
)
from penstock.instrumentation.hooks import registry
from penstock.instrumentation.policy import ActivePolicy
from penstock.instrumentation.telemetry import CAPACITY, Emitter, Snapshots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.core import Settings
    from penstock.instrumentation.policy.client import PolicyClient
    from penstock.instrumentation.telemetry.exporter import Exporter
    from penstock.instrumentation.transport import BackgroundThread

logger = logging.getLogger("penstock")

START_AGAIN: Final = 512
"""Entries of one kind after which an exporter that could not be started is tried again."""

STOP_DEADLINE: Final = 1.0
"""Seconds that the end of the process may wait for the last batches."""

LAST_WORDS_SECONDS: Final = 0.5
"""How long an exception that ends the engine waits until the agent knows of it; not at all without an agent."""

FORK_DEADLINE: Final = 2.0
"""Seconds that a fork may wait for our threads to close what they hold (about 10 ms is usual)."""


class Runtime:
    """What a hook needs. No method raises for a reason outside its caller, none waits.

    Attributes:
        settings: the environment, or None where Penstock is off.
        active: whether hooks do anything; False while paused, stopped or off. Look at it on every call.
        snapshots: who contributes to the snapshot of once a second.
        policy: the policy in force.
        epoch: identity of this life of the process.
        secret: what both streams of this process show to the agent.
        born_ns: wall clock of its beginning.

    """

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.active = False
        self.snapshots = Snapshots()
        self.policy = ActivePolicy()
        self.epoch = new_epoch()
        self.secret = new_secret()
        self.born_ns = time.time_ns()
        self.identity = Identity()
        self.emitter = Emitter(self._ring)
        self.emit_event = self.emitter.emit_event
        self.emit_transfer = self.emitter.emit_transfer
        self.emit_probe = self.emitter.emit_probe
        self._lock = threading.RLock()
        self._paused_by: frozenset[str] = frozenset()
        self._exporter: Exporter | None = None
        self._policy_client: PolicyClient | None = None
        self._stopped = False
        self._exit_registered = False
        self._fork_lock = threading.RLock()
        self._forks_clean = False
        self._grpc_stays = False
        self._grpc_forbidden = False
        # Objects of a parent's grpc: their destructors would talk to threads that this process does not have.
        self._inherited: list[object] = []

    def configure(self, settings: Settings | None) -> None:
        """Switch Penstock on with *settings*, or off with None."""
        self.settings = settings
        self._stopped = False
        self._update_active()

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
        with self._lock:
            if PRECEDENCE.get(process, 0) < PRECEDENCE.get(self.identity.process, 0):
                return
            given = self.settings.labels.get("role", "") if self.settings else ""
            self.identity = Identity(
                process=process,
                engine=key,
                rank=rank,
                role=given or role,
                role_guessed=not given and bool(role),
                model=model,
                vllm_version=vllm_version,
            )
            services = self._services()
        for service in services:
            service.ring()

    def start(self) -> None:
        """Start the exporter now, so that an idle engine shows too. Call it when no fork follows."""
        with guard("runtime.start"):
            self._ring()

    def start_policy(self, fields: Iterable[str]) -> None:
        """Start the policy client (EngineCore only).

        Args:
            fields: what this engine acts upon, as dotted names of ``PolicyBody``: ``"ec_load_failure"`` for all of
                a message, ``"kv_load_failure.action"`` for one field. A push that sets anything else is refused.

        """
        with guard("runtime.start_policy"):
            self._ring()
            with self._lock:
                if self.settings is None or self._off() or self._policy_client is not None:
                    return
                from penstock.instrumentation.policy.client import PolicyClient  # noqa: PLC0415  (grpc)

                client = PolicyClient(self, self.settings, frozenset(fields))
                client.start()
                self._policy_client = client
                self.snapshots.add("policy", client.fill)

    def pause(self, by: str, *, paused: bool) -> None:
        """Hold or lift the kill switch for one reason (``"ingest"``, ``"policy"``); any of them holds it."""
        with self._lock:
            self._paused_by = self._paused_by | {by} if paused else self._paused_by - {by}
            self._update_active()

    @property
    def paused(self) -> bool:
        """Whether the kill switch holds."""
        return bool(self._paused_by)

    def renew_epoch(self) -> None:
        """Begin a new life: the agent has lost what it had committed of this one."""
        self.epoch = new_epoch()
        client = self._policy_client
        if client is not None:
            client.resubscribe()

    def stop(self, deadline: float = STOP_DEADLINE) -> None:
        """Send what is left and say goodbye, within *deadline* seconds; hooks are passive from now on."""
        with self._lock:
            self._stopped = True
            self._update_active()
            exporter, self._exporter = self._exporter, None
            client, self._policy_client = self._policy_client, None
        with guard("runtime.stop"):
            by = time.monotonic() + deadline
            self.snapshots.remove("policy")
            if client is not None:
                client.request_stop()
            if exporter is not None:
                exporter.finish(by)
                exporter.join(by - time.monotonic())
            if client is not None:
                client.join(by - time.monotonic())

    def flush(self, seconds: float) -> None:
        """Get what has been emitted to the agent, waiting at most *seconds*: the last words of a process that is about to be killed."""
        with guard("runtime.flush"):
            exporter = self._exporter
            if exporter is not None:
                exporter.flush(seconds)

    def before_fork(self) -> None:
        """Close all streams, so that the child finds no trace of grpc; waits about 10 ms, at most two seconds.

        Without streams it waits for nothing: a fork of an engine where Penstock is off costs nothing.
        """
        deadline = time.monotonic() + FORK_DEADLINE
        self._forks_clean = self._fork_lock.acquire(timeout=FORK_DEADLINE)
        services = self._services()
        for service in services:
            service.request_park()
        for service in services:
            self._forks_clean &= service.wait_parked(deadline - time.monotonic())
        # With no stream of ours, or after it has been in vain, threads of grpc are the host's and will not end.
        patience = deadline if services and not self._grpc_stays else 0.0
        grpc_ended = wait_for_grpc_to_end(patience)
        self._grpc_stays |= bool(services) and not grpc_ended
        self._forks_clean &= grpc_ended

    def after_fork_in_parent(self) -> None:
        """Go on as before."""
        for service in self._services():
            service.resume()
        with contextlib.suppress(RuntimeError):  # the lock was not free within the deadline
            self._fork_lock.release()

    def after_fork_in_child(self) -> None:
        """Begin a new life with nothing of the parent's but its settings and installed hooks."""
        self._inherited.extend(self._services())
        self._exporter = self._policy_client = None
        self._exit_registered = False
        self._lock = threading.RLock()
        self._fork_lock = threading.RLock()
        self.epoch = new_epoch()
        self.secret = new_secret()
        self.born_ns = time.time_ns()
        self.identity = Identity()
        self.emitter.reset()
        self.snapshots.reset()
        self.policy.reset()
        # A child may have no policy stream to lift the parent's pause by; its own greeting settles it.
        self._paused_by = frozenset({"ingest"} if self._paused_by else ())
        guard.reset()
        registry.reset_lock()
        if not self._forks_clean and self.settings is not None:
            self._grpc_forbidden = True
            logger.warning(
                "penstock is off in process %d: grpc was in use at its fork, and a child that uses it then may "
                "hang; VLLM_WORKER_MULTIPROC_METHOD=spawn avoids that",
                os.getpid(),
            )
        self._update_active()

    def _services(self) -> list[BackgroundThread]:
        return [service for service in (self._policy_client, self._exporter) if service is not None]

    def _off(self) -> bool:
        return self.settings is None or self._stopped or self._grpc_forbidden

    def _update_active(self) -> None:
        self.active = not self._off() and not self._paused_by

    def _ring(self) -> None:
        """Wake the exporter; start it if this is the first entry of the process."""
        exporter = self._exporter
        if exporter is None:
            with guard("runtime.start"):
                exporter = self._start_exporter()
        if exporter is not None:
            exporter.ring()
        elif not self._off():
            # The system had no thread left: ask again when as much has come again, not at every entry.
            self.emitter.mark = min(self.emitter.longest() + START_AGAIN, CAPACITY)

    def _start_exporter(self) -> Exporter | None:
        with self._lock:
            if self.settings is None or self._off() or self._exporter is not None:
                return self._exporter
            from penstock.instrumentation.telemetry.exporter import Exporter  # noqa: PLC0415  (not before the first emit)

            exporter = Exporter(self, self.settings)
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
