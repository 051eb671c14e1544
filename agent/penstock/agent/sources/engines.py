"""Which process speaks for an engine, and what engines are for. Pure, in memory; ownership on one thread.

gRPC tells a server nothing about the process behind a unix socket. So each engine process draws a secret and sends it in
the first message of both of its streams. The first EngineCore process holds its engine while it is connected: no other
process can subscribe to the engine's policy or send as its EngineCore. When its connection has ended, any process can
take the engine, because an engine that was killed and started again has a new secret. But if the earlier holder comes
back within the grace, it is alive, and it takes the engine back.

Engines older than the secret send none. They hold nothing, and are refused only while another process holds the engine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.agent.errors import HeldError
from penstock.proto.names import label
from penstock.proto.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.model import EngineKey, Source
    from penstock.proto.v1.snapshot_pb2 import EngineFacts

# Engines in memory; those without a stream are forgotten first.
_MAX_ENGINES = 1_024
# Seconds within which an earlier holder that comes back is alive: a stream that breaks is there again in a few.
_GRACE = 10.0
MAX_ENGINES: Final = 1_024
"""Engines that are remembered; beyond it the one that was first is forgotten."""


@dataclass(eq=False, slots=True)
class Ownership:
    """A stream that speaks for an engine.

    Attributes:
        credential: digest of its process's secret; empty if it has none.
        oust: called when the earlier holder takes the engine back.

    """

    key: EngineKey
    credential: bytes
    oust: Callable[[], None]


@dataclass(slots=True)
class _Owned:
    """The holder's credential (empty while none is connected), the earlier holder's and its deadline, all streams."""

    holder: bytes = b""
    earlier: bytes = b""
    until: float = 0.0
    goodbye: bool = False
    holds: set[Ownership] = field(default_factory=set)


class EngineOwners:
    """Decides which streams may speak for an engine.

    Args:
        grace: seconds in which a process whose connection broke off may take its engine back.
        clock: monotonic seconds.

    """

    def __init__(self, grace: float = _GRACE, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace = grace
        self._clock = clock
        self._engines: dict[EngineKey, _Owned] = {}

    def restore(self, key: EngineKey, credential: bytes, seconds: float) -> None:
        """Reserve *key* for the process that held it in an earlier life of the agent, for *seconds*."""
        if credential:
            engine = self._engine(key)
            engine.earlier, engine.until = credential, self._clock() + seconds

    def enter(self, key: EngineKey, credential: bytes, oust: Callable[[], None]) -> Ownership:
        """Admit a stream.

        Raises:
            HeldError: another process, which is connected, holds the engine.

        """
        engine = self._engine(key)
        comes_back = bool(credential) and credential == engine.earlier and self._clock() < engine.until
        if engine.holder and engine.holder != credential and not comes_back:
            raise HeldError(
                f"engine {str(key)!r} is held by another process, which is connected: give each server of the pod a "
                "PENSTOCK_SERVER of its own; an engine that was started again comes in when its predecessor's "
                "connection has ended"
            )
        if comes_back:
            engine.earlier = b""
            for hold in [each for each in engine.holds if each.credential != credential]:
                engine.holds.discard(hold)
                hold.oust()
        if credential:
            engine.holder, engine.goodbye = credential, False
        hold = Ownership(key, credential, oust)
        engine.holds.add(hold)
        return hold

    def leave(self, hold: Ownership, *, goodbye: bool = False) -> None:
        """Release a stream that has ended; after a *goodbye* its process does not return. Idempotent."""
        engine = self._engines.get(hold.key)
        if engine is None or hold not in engine.holds:
            return
        engine.holds.discard(hold)
        if not hold.credential:
            return
        engine.goodbye = engine.goodbye or goodbye
        if any(each.credential == hold.credential for each in engine.holds):
            return
        now = self._clock()
        # Of several that broke off, the first keeps its right: short visits of others do not push it out.
        if not engine.goodbye and (not engine.earlier or now >= engine.until):
            engine.earlier, engine.until = hold.credential, now + self._grace
        engine.holder = b""

    def _engine(self, key: EngineKey) -> _Owned:
        engine = self._engines.get(key)
        if engine is None:
            if len(self._engines) >= _MAX_ENGINES:
                self._forget()
            engine = self._engines[key] = _Owned()
        return engine

    def _forget(self) -> None:
        """Forget the engines without a stream: those past their deadline, else all."""
        now = self._clock()
        idle = [key for key, engine in self._engines.items() if not engine.holds]
        over = [key for key in idle if now >= self._engines[key].until]
        for key in over or idle:
            del self._engines[key]


def engine_role(source: Source, facts: EngineFacts) -> tuple[str, bool]:
    """Return an engine's role and whether it is guessed.

    Its EngineCore's *facts* count, which learn the role from the requests where ``kv_both`` leaves it open;
    if they have none, what *source* said when it connected. The role is ``unspecified`` if it is not known.
    """
    if facts.role != common_pb2.ROLE_UNSPECIFIED:
        return label(common_pb2.Role, facts.role), facts.role_guessed
    return source.role, source.role_guessed


class EngineRoles:
    """The roles and addresses of engines by the last facts of each; written on the loop, read from any thread."""

    def __init__(self) -> None:
        self._roles: dict[EngineKey, tuple[str, bool]] = {}
        self._addresses: dict[EngineKey, str] = {}
        self._encoders: dict[EngineKey, str] = {}

    def note(self, source: Source, facts: EngineFacts) -> None:
        """Store what the facts of *source*'s engine say."""
        self._roles[source.key] = engine_role(source, facts)
        self._addresses[source.key] = facts.side_channel
        self._encoders[source.key] = facts.ec_address
        if len(self._roles) > MAX_ENGINES:
            self.forget(next(iter(self._roles)))

    def forget(self, key: EngineKey) -> None:
        """Forget an engine."""
        self._roles.pop(key, None)
        self._addresses.pop(key, None)
        self._encoders.pop(key, None)

    def address(self, key: EngineKey) -> str:
        """Return where an engine had its side channel when it last said so; empty for none."""
        return self._addresses.get(key, "")

    def encoder_address(self, key: EngineKey) -> str:
        """Return where an engine last said that its encoder outputs are; empty for nowhere."""
        return self._encoders.get(key, "")

    def described(self, source: Source) -> Source:
        """Return *source* with the role of its engine; as it is if no facts of the engine are known."""
        role, guessed = self._roles.get(source.key, (source.role, source.role_guessed))
        if (role, guessed) == (source.role, source.role_guessed):
            return source
        return replace(source, role=role, role_guessed=guessed)
