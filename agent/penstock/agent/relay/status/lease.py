"""Leases at the fleet's policy source: of all relays at most one holds it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig
from nats.js.errors import BucketNotFoundError, KeyNotFoundError, KeyWrongLastSequenceError
from penstock.agent.errors import ClusterError, ConflictError, PenstockError
from penstock.agent.policy.kubernetes import ApiClient, ClusterAccess
from penstock.agent.policy.sources.nats.connection import NatsAccess, connected, sentence
from penstock.agent.relay.status.tenure import LeaseWord, Tenure

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.js.kv import KeyValue

LEASE = "penstock-relay"
"""The name of the Lease object."""
DURATION = 15
"""Of a lease, seconds."""
_KEY = "leader"
# The server forgets a lease that nobody renews; when another may take it is decided by the relays' own clocks.
_FORGET_DURATIONS = 4
_RENEWALS = 3
_MAX_NAME = 250
_log = structlog.get_logger(__name__)


class Lease(Protocol):
    """A lease; the loop's.

    Attributes:
        held: whether this relay holds it; False as soon as it cannot be sure. Ask again before each write.
        error: why the last renewal failed; empty if it did not.

    """

    @property
    def held(self) -> bool: ...  # noqa: D102
    @property
    def error(self) -> str: ...  # noqa: D102

    async def run(self) -> None:
        """Take the lease where nobody has it, and renew it, until cancelled."""


class _LeasePlace(Protocol):
    """Where a lease is."""

    async def read(self) -> LeaseWord: ...

    async def write(self, holder: str, version: str) -> str:
        """Write *holder* if the lease is at *version*, and return the new one.

        Raises:
            ConflictError: it is at another.

        """


class _TimedLease:
    """What leases of both kinds do."""

    def __init__(self, duration: int, clock: Callable[[], float] | None) -> None:
        self._clock = clock or _now
        self._duration = duration
        # A process that starts again is another holder.
        self.holder = f"{socket.gethostname()[:_MAX_NAME]}_{uuid.uuid4()}"
        self._tenure = Tenure(self.holder, duration)
        self.error = ""

    @property
    def held(self) -> bool:
        """Whether this relay holds the lease."""
        return self._tenure.held(self._clock())

    async def run(self) -> None:
        """Take and renew it until cancelled."""
        pause = self._duration / _RENEWALS
        had = False
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._attempt()
                self._complain("")
            except ConflictError:
                # Another relay was faster.
                self._tenure.lose()
            except TimeoutError:
                self._complain("the lease cannot be renewed: its place does not answer in time")
            except PenstockError as error:
                self._complain(f"the lease cannot be renewed: {error}")
            if self.held != had:
                had = self.held
                _log.info("lease taken" if had else "lease lost", holder=self.holder)
            await asyncio.sleep(pause)

    async def _attempt(self) -> None:
        raise NotImplementedError

    async def _exchange(self, place: _LeasePlace) -> None:
        word = await place.read()
        self._tenure.see(word, self._clock())
        asked = self._clock()
        if self._tenure.may_take(asked):
            self._tenure.renewed(await place.write(self.holder, word.version), asked)

    def _complain(self, text: str) -> None:
        if text and text != self.error:
            _log.warning("lease away", reason=text)
        self.error = text


class KubernetesLease(_TimedLease):
    """The Lease object ``penstock-relay`` of a namespace."""

    def __init__(
        self, access: ClusterAccess, duration: int = DURATION, clock: Callable[[], float] | None = None
    ) -> None:
        """Prepare it.

        Args:
            access: to the namespace.
            duration: seconds.
            clock: monotonic seconds; None for the machine's.

        """
        super().__init__(duration, clock)
        self._access = access

    async def _attempt(self) -> None:
        async with ApiClient(self._access) as client:
            await self._exchange(_LeaseObject(client, self._duration))


class _LeaseObject:
    def __init__(self, client: ApiClient, duration: int) -> None:
        self._client = client
        self._duration = duration
        self._object: dict[str, Any] = {}

    async def read(self) -> LeaseWord:
        self._object = await self._client.read_lease(LEASE) or {}
        if not self._object:
            return LeaseWord("", 0.0, "")
        try:
            spec = self._object.get("spec") or {}
            holder, duration = spec.get("holderIdentity") or "", spec.get("leaseDurationSeconds") or 0
            return LeaseWord(str(holder), float(duration), str(self._object["metadata"]["resourceVersion"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ClusterError("the API server's Lease is none") from None

    async def write(self, holder: str, version: str) -> str:
        del version  # The object has it.
        old = self._object.get("spec") or {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        taken = old.get("holderIdentity") != holder
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": self._duration,
            "acquireTime": now if taken else old.get("acquireTime") or now,
            "renewTime": now,
            "leaseTransitions": (old.get("leaseTransitions") or 0) + taken,
        }
        head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}}
        written = await self._client.write_lease({**head, **self._object, "spec": spec})
        try:
            return str(written["metadata"]["resourceVersion"])
        except (KeyError, TypeError):
            raise ClusterError("the API server's Lease is none") from None


class NatsLease(_TimedLease):
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

    async def _attempt(self) -> None:
        try:
            async with connected(self._access, self._attempts, asyncio.Event()) as client:
                await self._exchange(_LeaseKey(await self._opened(client.jetstream()), self._duration))
        except (NatsError, OSError) as error:
            # TimeoutError is an OSError. The next server's turn.
            self._attempts += 1
            raise ClusterError(sentence(error, self._bucket)) from None

    async def _opened(self, stream: Any) -> KeyValue:
        try:
            bucket: KeyValue = await stream.key_value(self._bucket)
        except BucketNotFoundError:
            config = KeyValueConfig(self._bucket, history=1, ttl=_FORGET_DURATIONS * self._duration)
            bucket = await stream.create_key_value(config)
        return bucket


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
            # Somebody else's word counts for its time, too.
            return LeaseWord("", float(self._duration), str(entry.revision))

    async def write(self, holder: str, version: str) -> str:
        value = json.dumps({"holder": holder, "duration": self._duration}).encode()
        try:
            if not version:
                return str(await self._bucket.create(_KEY, value))
            return str(await self._bucket.update(_KEY, value, last=int(version)))
        except KeyWrongLastSequenceError:
            raise ConflictError("another relay was faster") from None


def _now() -> float:
    """Return seconds that go on while the machine sleeps, and that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
