"""One connection to one of several NATS servers, what its errors mean, and the buckets that Penstock keeps for itself."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import nats
from nats.errors import AuthorizationError, Error, NoRespondersError, NoServersError
from nats.js.errors import APIError, BucketNotFoundError, ServiceUnavailableError
from penstock.agent.aio import raise_if_cancelled, to_completion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.aio.client import Client
    from nats.js.api import KeyValueConfig
    from nats.js.client import JetStreamContext
    from nats.js.kv import KeyValue

# Until a server has answered, seconds.
CONNECT_SECONDS = 5.0
# A server that answers no ping for three of these is away, seconds.
_PING_SECONDS = 2
_CLOSE_SECONDS = 2.0


# Of a bucket in a cluster: one server may be lost.
_REPLICAS = 3
# The server's codes where it has too few others: it is none of a cluster, or they have no room.
_TOO_FEW = (10005, 10074)


@dataclass(frozen=True, slots=True)
class NatsAccess:
    """How to reach NATS.

    Attributes:
        servers: ``nats://HOST:PORT`` or ``tls://HOST:PORT``, of one cluster.
        user: empty for none.
        password: of the user.
        credentials: a file of ``nsc``, or None.
        ca: PEM bundle that the server's certificate must be signed by; None for the system's.
        cert: the client's certificate, or None.
        key: of the certificate, or None.

    """

    servers: tuple[str, ...]
    user: str = ""
    password: str = ""
    credentials: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __repr__(self) -> str:
        """Return the servers, so that no log has the password."""
        return ",".join(self.servers)

    def options(self) -> dict[str, Any]:
        """Return the options of the client; files are read anew, for they may rotate.

        Raises:
            OSError: a file cannot be read (``ssl.SSLError`` is one).

        """
        found: dict[str, Any] = {}
        if self.user:
            found |= {"user": self.user, "password": self.password}
        if self.credentials is not None:
            self.credentials.open("rb").close()
            found["user_credentials"] = str(self.credentials)
        if self.ca or self.cert or self.servers[0].startswith("tls://"):
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
            found["tls"] = context
        return found


@asynccontextmanager
async def connected(
    access: NatsAccess, attempt: int, lost: asyncio.Event, seconds: float = CONNECT_SECONDS
) -> AsyncIterator[Client]:
    """Connect to the server whose turn it is at *attempt*; set *lost* when the connection ends.

    The client swallows a cancellation that comes while it sends; here it goes on at the end at the latest.
    It does not reconnect: after a pause the caller connects anew and reads everything anew. The server has
    *seconds* to accept the connection, and as many to answer over it.

    Raises:
        OSError: it cannot be reached.
        Error: it refuses the client.

    """

    async def closed() -> None:
        lost.set()

    async def ignored(_: Exception) -> None:
        """Do nothing: the caller sees the error of its own call."""

    client = nats.NATS()
    try:
        async with asyncio.timeout(2 * seconds):
            await client.connect(
                [access.servers[attempt % len(access.servers)]],
                name="penstock-agent",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=seconds,
                ping_interval=_PING_SECONDS,
                closed_cb=closed,
                disconnected_cb=closed,
                error_cb=ignored,
                **access.options(),
            )
        raise_if_cancelled()
        yield client
    finally:
        await to_completion(_close(client))
        raise_if_cancelled()


async def _close(client: Client) -> None:
    """Close the client within its time, and then its socket in any case.

    After an error the client closes itself on a task of its own, and its ``close`` returns at once.
    """
    with suppress(Exception):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
    transport = client._transport  # noqa: SLF001  (there is no public way)
    if transport is not None:
        with suppress(Exception):
            transport.close()
        await asyncio.sleep(0)  # in which the loop lets go of it


def sentence(error: Exception, bucket: str) -> str:  # noqa: PLR0911
    """Return what *error* means for the operator, without a secret."""
    text = " ".join(str(error).split())
    if isinstance(error, AuthorizationError) or "authorization" in text.lower():
        return "the server refuses the credentials; check --nats-credentials, or user and password"
    if isinstance(error, BucketNotFoundError):
        return f"bucket {bucket!r} does not exist; create it: nats kv add {bucket} --history=16"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails ({text}); check --nats-ca, --nats-cert and --nats-key"
    if isinstance(error, ServiceUnavailableError | NoRespondersError):
        return "JetStream does not answer: it is not enabled, or its cluster has no leader"
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "the server does not answer in time"
    if isinstance(error, OSError | NoServersError):
        return f"the server cannot be reached: {text or type(error).__name__}"
    if isinstance(error, Error):
        return text or type(error).__name__
    return f"{type(error).__name__}: {text}"


async def open_or_create(stream: JetStreamContext, config: KeyValueConfig) -> KeyValue:
    """Open the bucket of *config*; create it if it is absent, with three replicas where there are so many servers.

    Raises:
        Error: the server refuses it.
        TimeoutError: the server does not answer.

    """
    try:
        return await stream.key_value(config.bucket)
    except BucketNotFoundError:
        try:
            return await stream.create_key_value(replace(config, replicas=_REPLICAS))
        except APIError as error:
            if error.err_code not in _TOO_FEW:
                raise
            return await stream.create_key_value(config)
