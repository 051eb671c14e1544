"""The nouns that all parts of the agent share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.proto.v1.ingest_pb2 import Hello


class EngineKey(NamedTuple):
    """One vLLM engine: its index inside one server of the pod.

    ``server`` is empty where the pod has one server; ``engine`` is empty for the
    API process, which serves all engines of its server.
    """

    server: str
    engine: str

    def __str__(self) -> str:
        """Return the form that people type: ``decode/0``, or ``0`` without a server."""
        return f"{self.server}/{self.engine}" if self.server else self.engine


@dataclass(frozen=True, slots=True)
class Source:
    """One emitting process, as its Hello described it.

    Attributes:
        epoch: random identity of the process's life; never 0.
        process: ``api``, ``engine-core`` or ``worker``.
        role: word of ``Role`` (``prefill``, ``decode``, ...); ``unspecified`` if not known.

    """

    epoch: int
    key: EngineKey
    process: str
    rank: int = 0
    pid: int = 0
    role: str = "unspecified"
    role_guessed: bool = False
    model: str = ""
    vllm_version: str = ""
    penstock_version: str = ""
    schema_version: int = 1
    start_time_unix_nano: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_hello(cls, epoch: int, hello: Hello) -> Source:
        """Build the source that *hello* describes."""
        from penstock.proto.names import label  # noqa: PLC0415  (keeps import time of the CLI low)
        from penstock.proto.v1.common_pb2 import Role  # noqa: PLC0415

        return cls(
            epoch=epoch,
            key=EngineKey(hello.key.server, hello.key.engine),
            process=hello.process,
            rank=hello.rank,
            pid=hello.pid,
            role=label(Role, hello.role),
            role_guessed=hello.role_guessed,
            model=hello.model,
            vllm_version=hello.vllm_version,
            penstock_version=hello.penstock_version,
            schema_version=hello.schema_version,
            start_time_unix_nano=hello.start_time_unix_nano,
            labels=dict(hello.labels),
        )


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A row of the log: the batch as it came, at its position.

    Attributes:
        id: position in the log, from 1, ascending; never used twice.
        received_unix_nano: the agent's wall clock when it was taken in.
        body: the serialized ``Batch``; empty if a bad disk has spoilt it.

    """

    id: int
    epoch: int
    seq: int
    received_unix_nano: int
    body: bytes
