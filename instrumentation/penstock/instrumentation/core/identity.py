"""Who this process is, as its Hello says it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Final

from penstock.proto.names import ENGINE_CORE

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
