"""The lease in a bucket of NATS."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from penstock.agent.errors import ClusterError, ConflictError
from penstock.agent.policy.sources.nats.connection import NatsAccess, connected, open_or_create, sentence
from penstock.agent.relay.object_status.lease import DURATION, LeaseWord, TimedLease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nats.js.kv import KeyValue
    from penstock.agent.relay.object_status.lease import LeasePlace

_KEY = "leader"
# The server forgets a lease that is not renewed; when another may take it is decided by the relays' own clocks.
_FORGET_DURATIONS = 4


class NatsLease(TimedLease):
    """The key ``leader`` of the bucket ``BUCKET-leader``, which the lease makes if it is absent."""

    def __init__(
        self,
        access: NatsAccess,
        bucket: str,
        duration: int = DURATION,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Prepare it.

        Args:
            access: to the servers.
            bucket: of the policies.
            duration: seconds.
            clock: monotonic seconds; None for the machine's.

        """
        super().__init__(duration, clock)
        self._access = access
        self._bucket = f"{bucket}-leader"
        self._attempts = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[LeasePlace]:
        """Connect to the server that answered the last time, or else to the next."""
        served = False
        try:
            async with connected(self._access, self._attempts, asyncio.Event()) as client:
                config = KeyValueConfig(self._bucket, history=1, ttl=_FORGET_DURATIONS * self.duration)
                yield _LeaseKey(await open_or_create(client.jetstream(), config), self.duration)
                served = True
        except (NatsError, OSError) as error:
            # TimeoutError is an OSError.
            raise ClusterError(sentence(error, self._bucket)) from None
        finally:
            # One that hangs is left by the caller's time, with no error of its own.
            self._attempts += not served


class _LeaseKey:
    def __init__(self, bucket: KeyValue, duration: int) -> None:
        self._bucket = bucket
        self._duration = duration

    async def read(self) -> LeaseWord:
        try:
            entry = await self._bucket.get(_KEY)
        except KeyNotFoundError:
            return LeaseWord("", 0.0, "")
        try:
            value = json.loads(entry.value or b"")
            return LeaseWord(str(value["holder"]), float(value["duration"]), str(entry.revision))
        except (ValueError, RecursionError, KeyError, TypeError):
            # A word that cannot be read counts for its time, too.
            return LeaseWord("", float(self._duration), str(entry.revision))

    async def write(self, holder: str, version: str) -> str:
        value = json.dumps({"holder": holder, "duration": self._duration if holder else 0}).encode()
        try:
            if not version:
                return str(await self._bucket.create(_KEY, value))
            return str(await self._bucket.update(_KEY, value, last=int(version)))
        except KeyWrongLastSequenceError:
            raise ConflictError("another relay was faster") from None
