"""Who this process is, as its Hello says it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from penstock.proto.names import ENGINE_CORE

PRECEDENCE: Final = {"": 0, "api": 1, "worker": 2, ENGINE_CORE: 3}
"""One process may hold several parts; it goes by the one that ranks highest."""


@dataclass(frozen=True)
class Identity:
    """What the hooks found out about their process.

    Attributes:
        process: ``api``, ``engine-core`` or ``worker``; empty while nobody has said it.
        engine: vLLM's engine index in its server (``"0"``); empty in the API process.
        rank: of the worker; 0 elsewhere.
        role: ``prefill``, ``decode``, ``encoder``, ``both``, or empty where it is not known.
        role_guessed: the role does not come from ``PENSTOCK_LABELS``.

    """

    process: str = ""
    engine: str = ""
    rank: int = 0
    role: str = ""
    role_guessed: bool = False
    model: str = ""
    vllm_version: str = ""


def new_secret() -> bytes:
    """Return what proves to the agent that two streams come from one process. It is never logged, nor given to a child."""
    return secrets.token_bytes(16)


def new_epoch() -> int:
    """Return a random identity for one life of a process: 64 bits, never 0."""
    return secrets.randbits(64) or 1
