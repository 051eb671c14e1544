"""A source as the journal keeps it: the bytes of its Hello."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from penstock.agent.model import Source
from penstock.proto.names import number
from penstock.proto.v1.common_pb2 import EngineKey, Role
from penstock.proto.v1.ingest_pb2 import Hello


def encode_source(source: Source) -> bytes:
    """Return the Hello that describes *source*."""
    return Hello(
        schema_version=source.schema_version,
        key=EngineKey(server=source.key.server, engine=source.key.engine),
        process=source.process,
        rank=source.rank,
        pid=source.pid,
        start_time_unix_nano=source.start_time_unix_nano,
        penstock_version=source.penstock_version,
        vllm_version=source.vllm_version,
        model=source.model,
        labels=source.labels,
        role=_role(source.role),
        role_guessed=source.role_guessed,
        # Only the digest: the secret itself is on no disk.
        secret=source.credential,
    ).SerializeToString(deterministic=True)


def _role(word: str) -> Role:
    # "unspecified", and "unknown" for a role of a newer engine.
    try:
        return cast("Role", number(Role, word))
    except ValueError:
        return Role.ROLE_UNSPECIFIED


def decode_source(epoch: int, blob: bytes) -> Source:
    """Undo :func:`encode_source`."""
    hello = Hello.FromString(blob)
    return replace(Source.from_hello(epoch, hello), credential=hello.secret)
