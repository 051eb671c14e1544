"""One life of this process: identity, epoch, secret, kill switch. No thread and no grpc."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core.rotation import Rotation
from penstock.proto.names import ENGINE_CORE

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.core.settings import Settings

PRECEDENCE: Final = {"": 0, "api": 1, "worker": 2, ENGINE_CORE: 3}
"""Rank of each part. A process that holds several parts is named after the highest."""


@dataclass(frozen=True)
class Identity:
    """What the hooks found out about their process.

    Attributes:
        process: ``api``, ``engine-core`` or ``worker``; empty while it is unknown.
        engine: vLLM's engine index in its server (``"0"``); empty in the API process, which serves all engines.
        rank: of the worker; 0 elsewhere.
        role: ``prefill``, ``decode``, ``encoder``, ``both``; empty while it is unknown.
        role_guessed: whether the role does not come from ``PENSTOCK_LABELS``.
        model: the served model's name.
        vllm_version: of this vLLM.

    """

    process: str = ""
    engine: str = ""
    rank: int = 0
    role: str = ""
    role_guessed: bool = False
    model: str = ""
    vllm_version: str = ""

    def with_role(self, role: str) -> Identity:
        """Return this identity with a role that is not guessed."""
        return replace(self, role=role, role_guessed=False)


def new_secret() -> bytes:
    """Return 16 random bytes that prove to the agent that two streams come from one process."""
    return secrets.token_bytes(16)


def new_epoch() -> int:
    """Return a random identity for one life of a process: 64 bits, never 0."""
    return secrets.randbits(64) or 1


class Session:
    """The state that the runtime and its threads share. Every method may be called from any thread.

    Attributes:
        settings: the environment; None where Penstock is off.
        identity: of this process; empty until :meth:`identify` is called.
        epoch: random, 64 bits; names this life on the wire.
        secret: proves to the agent that two streams come from one process; never logged.
        started_ns: wall clock of the beginning of this life, in nanoseconds.
        active: whether hooks do anything; False while off, stopped or paused.
        failed: this process ends because of an error, not on purpose: it says no goodbye.
        rotation: the order that takes a front end out of rotation.

    """

    def __init__(self, on_active: Callable[[bool], None] = lambda _: None) -> None:
        """Begin with Penstock off; *on_active* receives every new value of :attr:`active` and must not wait."""
        self.settings: Settings | None = None
        self.active = False
        self.failed = False
        self.rotation = Rotation()
        self._on_active = on_active
        self._paused_by: frozenset[str] = frozenset()
        self._stopped = False
        self._grpc_forbidden = False
        # Re-entrant, because a signal handler may stop the runtime on the thread that holds it.
        self._lock = threading.RLock()
        self._subscribers: tuple[Callable[[], None], ...] = ()
        self.identity = Identity()
        self.epoch = new_epoch()
        self.secret = new_secret()
        self.started_ns = time.time_ns()

    @property
    def off(self) -> bool:
        """Whether nothing may be started: without settings, after :meth:`stop`, or where grpc must not be used."""
        return self.settings is None or self._stopped or self._grpc_forbidden

    @property
    def paused(self) -> bool:
        """Whether the kill switch holds."""
        return bool(self._paused_by)

    @property
    def seconds_out_of_rotation(self) -> float:
        """For how many seconds an order still takes this process out of rotation; 0 without one, and while passive."""
        return self.rotation.seconds_left() if self.active else 0.0

    def configure(self, settings: Settings | None) -> None:
        """Switch Penstock on with *settings*, or off with None."""
        with self._lock:
            self.settings = settings
            self._stopped = False
            self._update_active()

    def identify(self, identity: Identity) -> bool:
        """Set the identity unless a part of higher precedence has set it; return whether it was set.

        The role of ``PENSTOCK_LABELS`` replaces a guessed one.
        """
        with self._lock:
            if PRECEDENCE.get(identity.process, 0) < PRECEDENCE.get(self.identity.process, 0):
                return False
            role = self.settings.labels.get("role", "") if self.settings else ""
            self.identity = identity.with_role(role) if role else identity
            return True

    def set_paused(self, by: str, *, paused: bool) -> None:
        """Set or clear the kill switch for one reason (``"ingest"``, ``"policy"``); any of them holds it."""
        with self._lock:
            self._paused_by = self._paused_by | {by} if paused else self._paused_by - {by}
            self._update_active()

    def subscribe(self, on_epoch: Callable[[], None]) -> None:
        """Call *on_epoch* after each new epoch until :meth:`stop` or a fork; it must not wait."""
        with self._lock:
            self._subscribers = (*self._subscribers, on_epoch)

    def new_epoch(self) -> None:
        """Draw a new epoch, because the agent has lost what it had committed of the present one."""
        self.epoch = new_epoch()
        for on_epoch in self._subscribers:
            on_epoch()

    def stop(self) -> None:
        """Make the hooks passive and drop the subscribers. Idempotent."""
        with self._lock:
            self._stopped = True
            self._subscribers = ()
            self._update_active()

    def after_fork_in_child(self, *, grpc_forbidden: bool) -> None:
        """Begin a new life with nothing of the parent's but its settings.

        Args:
            grpc_forbidden: grpc was in use at the fork; Penstock stays off in this process and its children.

        """
        self._lock = threading.RLock()
        self._subscribers = ()
        self.identity = Identity()
        self.epoch = new_epoch()
        self.secret = new_secret()
        self.started_ns = time.time_ns()
        self.failed = False
        self.rotation.end()
        # A child may have no policy stream to clear the parent's pause; its own greeting does.
        self._paused_by = frozenset({"ingest"} if self._paused_by else ())
        self._grpc_forbidden |= grpc_forbidden
        self._update_active()

    def _update_active(self) -> None:
        self.active = not self.off and not self._paused_by
        self._on_active(self.active)
