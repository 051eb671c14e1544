"""What engines are for: one answer for metrics and spans."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.proto.names import label
from penstock.proto.v1 import common_pb2

if TYPE_CHECKING:
    from penstock.agent.model import EngineKey, Source
    from penstock.proto.v1.snapshot_pb2 import EngineFacts


def engine_role(source: Source, facts: EngineFacts) -> tuple[str, bool]:
    """Return an engine's role and whether it is guessed.

    Its EngineCore's *facts* count, which learn the role from the requests where ``kv_both`` leaves it open;
    if they have none, what *source* said when it connected. The role is ``unspecified`` if it is not known.
    """
    if facts.role != common_pb2.ROLE_UNSPECIFIED:
        return label(common_pb2.Role, facts.role), facts.role_guessed
    return source.role, source.role_guessed


MAX_ENGINES: Final = 1_024
"""Engines that are remembered; beyond it the one that was first is forgotten."""


class EngineRoles:
    """The roles and addresses of engines by the last facts of each; written on the loop, read from any thread."""

    def __init__(self) -> None:
        self._roles: dict[EngineKey, tuple[str, bool]] = {}
        self._addresses: dict[EngineKey, str] = {}

    def note(self, source: Source, facts: EngineFacts) -> None:
        """Store what the facts of *source*'s engine say."""
        self._roles[source.key] = engine_role(source, facts)
        self._addresses[source.key] = facts.side_channel
        if len(self._roles) > MAX_ENGINES:
            self.forget(next(iter(self._roles)))

    def forget(self, key: EngineKey) -> None:
        """Forget an engine."""
        self._roles.pop(key, None)
        self._addresses.pop(key, None)

    def address(self, key: EngineKey) -> str:
        """Return where an engine had its side channel when it last said so; empty for none."""
        return self._addresses.get(key, "")

    def described(self, source: Source) -> Source:
        """Return *source* with the role of its engine; as it is if no facts of the engine are known."""
        role, guessed = self._roles.get(source.key, (source.role, source.role_guessed))
        if (role, guessed) == (source.role, source.role_guessed):
            return source
        return replace(source, role=role, role_guessed=guessed)
