"""The nouns that all parts of the agent share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.proto.v1.common_pb2 import PolicySource as PolicySourceMessage
    from penstock.proto.v1.ingest_pb2 import Hello


AGENT_PROCESS = "agent"
"""The agent itself, as the source of what it writes into its own log."""

BREAK_GLASS_PRIORITY = 900
"""From here on a policy breaks the glass: it must have an end."""


def digest(secret: bytes) -> bytes:
    """Return the digest that is stored in place of a secret; empty for an empty one."""
    import hashlib  # noqa: PLC0415  (it starts OpenSSL; agentctl needs none)

    return hashlib.blake2b(secret, digest_size=16).digest() if secret else b""


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


# Longer than any index of an engine.
_DIGITS = 4


def engines_by_server(present: Iterable[EngineKey]) -> dict[str, int]:
    """Return how many data-parallel engines each server has, by the indices of those that are *present*.

    vLLM tells each engine of a dense model that it is alone in its server, but leaves it its index.
    """
    found: dict[str, int] = {}
    for server, engine in present:
        if engine.isdecimal() and len(engine) <= _DIGITS:
            found[server] = max(found.get(server, 0), int(engine) + 1)
    return found


class PolicySource(NamedTuple):
    """One generation of a policy, and what an effective policy has from it; its message has the same fields.

    Attributes:
        author: empty if it is not known.
        changed_time_unix_nano: when this generation was written; 0 if that is not known.
        fields: paths in its spec, those of mode observe after ``observed.``.

    """

    name: str
    generation: int
    author: str = ""
    changed_time_unix_nano: int = 0
    fields: tuple[str, ...] = ()


_MAX_AUTHOR = 100
_POLICIES_NAMED = 3
_HASH_SHOWN = 12


def policy_name(source: PolicySource | PolicySourceMessage) -> str:
    """Return a policy for a person: ``decode-fail (generation 3, by alice@host)``."""
    author = source.author if len(source.author) <= _MAX_AUTHOR else f"{source.author[: _MAX_AUTHOR - 1]}…"
    return f"{source.name} (generation {source.generation}{f', by {author}' if author else ''})"


def policy_names(sources: Sequence[PolicySource | PolicySourceMessage], hash_: str) -> str:
    """Return the policies behind *hash_*, at most three; the start of the hash if they are not known."""
    return (
        _joined([policy_name(source) for source in sources[:_POLICIES_NAMED]], len(sources), ", ")
        or (hash_[:_HASH_SHOWN])
    )


def short_policy_names(sources: Sequence[PolicySource | PolicySourceMessage], hash_: str) -> str:
    """Return what :func:`policy_names` does, for a column: ``decode-fail/3,limits/1``."""
    shown = [f"{source.name}/{source.generation}" for source in sources[:_POLICIES_NAMED]]
    return _joined(shown, len(sources), ",") or hash_[:_HASH_SHOWN]


def _joined(shown: list[str], count: int, comma: str) -> str:
    more = [f"{count - len(shown)} more"] if count > len(shown) else []
    return comma.join([*shown, *more])


@dataclass(frozen=True, slots=True)
class Source:
    """One emitting process, as its Hello described it.

    Attributes:
        epoch: random identity of the process's life; never 0.
        process: ``api``, ``engine-core`` or ``worker``.
        credential: digest of the process's secret; empty if it showed none.
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
    credential: bytes = field(default=b"", repr=False)

    @classmethod
    def from_hello(cls, epoch: int, hello: Hello) -> Source:
        """Return the source that *hello* describes."""
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
            credential=digest(hello.secret),
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
