"""The Hello of this process, and what its Subscribe shares with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.instrumentation.core import ROLES
from penstock.proto import SCHEMA_VERSION, __version__
from penstock.proto.v1.common_pb2 import EngineKey
from penstock.proto.v1.ingest_pb2 import Hello

if TYPE_CHECKING:
    from penstock.instrumentation.core import Identity, Settings


def engine_key(identity: Identity, settings: Settings) -> EngineKey:
    """Return the key by which the agent groups sources into engines."""
    return EngineKey(server=settings.server, engine=identity.engine)


def selector_labels(identity: Identity, settings: Settings) -> dict[str, str]:
    """Return the labels that policies select by: the environment's, and a guessed role where they have none."""
    found = dict(settings.labels)
    if identity.role:
        found.setdefault("role", identity.role)
    return found


def build_hello(identity: Identity, settings: Settings, started_ns: int, secret: bytes) -> Hello:
    """Return the Hello of this process.

    Args:
        identity: of the process.
        settings: its environment.
        started_ns: wall clock of its beginning, in nanoseconds.
        secret: proves to the agent that two streams come from one process.

    """
    return Hello(
        schema_version=SCHEMA_VERSION,
        key=engine_key(identity, settings),
        process=identity.process,
        rank=identity.rank,
        pid=os.getpid(),
        start_time_unix_nano=started_ns,
        penstock_version=__version__,
        vllm_version=identity.vllm_version,
        model=identity.model,
        labels=settings.labels,
        role=ROLES.get(identity.role, 0),  # type: ignore[arg-type]
        role_guessed=identity.role_guessed,
        secret=secret,
    )
