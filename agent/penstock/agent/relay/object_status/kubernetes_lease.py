"""The Lease object of a Kubernetes namespace."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.agent.errors import ClusterError
from penstock.agent.policy.kubernetes import ApiClient
from penstock.agent.relay.object_status.lease import DURATION, LeaseWord, TimedLease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.agent.policy.kubernetes import ClusterAccess
    from penstock.agent.relay.object_status.lease import LeasePlace

# Seconds of a lease without a holder that its holder gave back, as Kubernetes' own programs write it; they may not be 0.
_GIVEN_BACK = 1
LEASE = "penstock-relay"
"""The name of the Lease object."""


class KubernetesLease(TimedLease):
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

    @asynccontextmanager
    async def place(self) -> AsyncIterator[LeasePlace]:
        """Connect to the API server."""
        async with ApiClient(self._access) as client:
            yield _LeaseObject(client, self.duration)


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
            holder, duration = (
                str(spec.get("holderIdentity") or ""),
                float(spec.get("leaseDurationSeconds") or 0),
            )
            if not holder:
                duration = 0.0 if duration == _GIVEN_BACK else float(self._duration)
            return LeaseWord(holder, duration, str(self._object["metadata"]["resourceVersion"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ClusterError("the API server's Lease is none") from None

    async def write(self, holder: str, version: str) -> str:
        del version  # The object has it.
        old = self._object.get("spec") or {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        taken = bool(holder) and old.get("holderIdentity") != holder
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": self._duration if holder else _GIVEN_BACK,
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
