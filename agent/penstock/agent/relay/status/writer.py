"""Writes the status of all TransferPolicy objects of a namespace, while this relay holds the lease."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from penstock.agent.errors import ClusterError, ManifestError, NotFoundError, PenstockError
from penstock.agent.policy.kubernetes import ApiClient, read_object
from penstock.agent.policy.manifest import check_manifest
from penstock.agent.relay.status.object_status import object_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.agent.policy.kubernetes import ClusterAccess
    from penstock.agent.relay.status.fleet_words import FleetWords
    from penstock.agent.relay.status.lease import Lease

# Between two looks at objects and agents, and the least between two writes of one object.
LOOK_SECONDS = 2.0
WRITE_SECONDS = 5.0
_AWAY_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class StatusWriter:
    """Writes status; the loop's.

    Attributes:
        error: why the last look failed; empty if it did not.
        patches: writes by result, ``ok`` or ``failed``, since the start.

    """

    def __init__(
        self,
        access: ClusterAccess,
        lease: Lease,
        words: Callable[[], Awaitable[FleetWords]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare it.

        Args:
            access: to the namespace.
            lease: only its holder writes.
            words: asks the fleet.
            clock: monotonic seconds.

        """
        self._access = access
        self._lease = lease
        self._words = words
        self._clock = clock
        self._written: dict[str, float] = {}
        self.error = ""
        self.patches: Counter[str] = Counter()

    async def run(self) -> None:
        """Look every 2 s until cancelled."""
        while True:
            pause = LOOK_SECONDS
            if self._lease.held:
                try:
                    async with ApiClient(self._access) as client:
                        await self.look(client)
                    self._complain("")
                except ClusterError as error:
                    self._complain(str(error))
                    pause = max(_AWAY_SECONDS, error.retry_after)
                except Exception:  # noqa: BLE001  (a bug must not end the loop)
                    _log.exception("the status of policies could not be written; retrying")
            else:
                self._complain("")
            await asyncio.sleep(pause)

    async def look(self, client: ApiClient) -> None:
        """Write the status of each object whose status is another than what the agents say.

        Raises:
            ClusterError: the objects cannot be listed, or no status can be written.

        """
        values = await client.list_values()
        words = await self._words()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        names = {value["metadata"]["name"] for value in values}
        self._written = {name: at for name, at in self._written.items() if name in names}
        for value in values:
            name = value["metadata"]["name"]
            if self._clock() - self._written.get(name, -WRITE_SECONDS) < WRITE_SECONDS:
                continue
            before = value.get("status") or {}
            generation = int(value["metadata"].get("generation") or 0)
            status = object_status(generation, words.about(name, _content(value)), words.missing, before, now)
            if status == before:
                continue
            # Reading took its time.
            if not self._lease.held:
                return
            self._written[name] = self._clock()
            await self._write(client, name, status)

    async def _write(self, client: ApiClient, name: str, status: dict[str, Any]) -> None:
        try:
            await client.patch_status(name, status)
        except NotFoundError:
            # Deleted meanwhile.
            return
        except PenstockError:
            self.patches["failed"] += 1
            raise
        self.patches["ok"] += 1

    def _complain(self, error: str) -> None:
        if error and error != self.error:
            _log.warning("the status of policies cannot be written; retrying", reason=error)
        self.error = error


def _content(value: dict[str, Any]) -> str:
    """Return the canonical manifest of an object; empty if it is none."""
    _, found = read_object(value)
    if found.refusal:
        return ""
    try:
        return check_manifest(found.manifest).canonical
    except ManifestError:
        return ""
