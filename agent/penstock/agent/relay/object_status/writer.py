"""Writes the status of all TransferPolicy objects of a namespace, while this relay holds the lease."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from penstock.agent.errors import ClusterError, ConflictError, ManifestError, NotFoundError, PenstockError
from penstock.agent.policy.kubernetes import ApiClient, read_object
from penstock.agent.policy.manifest import check_manifest
from penstock.agent.relay.object_status.object_status import object_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.agent.policy.kubernetes import ClusterAccess
    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.relay.object_status.lease import Lease
    from penstock.agent.relay.object_status.object_status import FleetWords

# Between two looks at objects and agents, and the least between two writes of one object.
LOOK_SECONDS = 2.0
WRITE_SECONDS = 5.0
_AWAY_SECONDS = 5.0
# Of one look; then it is the server, or the role.
_MOST_FAILURES = 3

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
                except PenstockError as error:
                    self._complain(str(error))
                    pause = max(_AWAY_SECONDS, _retry_after(error))
                except Exception as error:  # noqa: BLE001  (a bug must not end the loop)
                    _log.exception("the status of policies could not be written; retrying")
                    self.error = f"an error of the relay ({type(error).__name__}); its log has more"
            else:
                self._complain("")
            await asyncio.sleep(pause)

    async def look(self, client: ApiClient) -> None:
        """Write the status of each object whose status is another than what the agents say.

        Raises:
            PenstockError: the objects cannot be listed, or a status cannot be written; the others are.

        """
        values = await client.list_values()
        words = await self._words()
        now = datetime.now(UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        names = {value["metadata"]["name"] for value in values}
        self._written = {name: at for name, at in self._written.items() if name in names}
        failures: list[PenstockError] = []
        # One that was refused comes after those that wait.
        for value in sorted(values, key=lambda each: self._written.get(each["metadata"]["name"], -math.inf)):
            name = value["metadata"]["name"]
            if self._clock() - self._written.get(name, -WRITE_SECONDS) < WRITE_SECONDS:
                continue
            before = value.get("status") or {}
            manifest = _manifest(value)
            status = object_status(
                int(value["metadata"].get("generation") or 0),
                words.about(name, "" if manifest is None else manifest.canonical),
                words.missing,
                before,
                stamp,
                expired=manifest is not None and manifest.expired(now),
            )
            if status == before:
                continue
            # Reading took its time.
            if not self._lease.held:
                break
            self._written[name] = self._clock()
            try:
                await self._write(client, name, value["metadata"]["resourceVersion"], status)
            except PenstockError as error:
                failures.append(error)
                if len(failures) == _MOST_FAILURES or _retry_after(error):
                    break
        if failures:
            raise failures[0]

    async def _write(self, client: ApiClient, name: str, version: str, status: dict[str, Any]) -> None:
        try:
            await client.patch_status(name, version, status)
        except (NotFoundError, ConflictError):
            # Changed or deleted meanwhile, or made again: the next look sees that.
            return
        except PenstockError:
            self.patches["failed"] += 1
            raise
        self.patches["ok"] += 1

    def _complain(self, error: str) -> None:
        if error and error != self.error:
            _log.warning("the status of policies cannot be written; retrying", reason=error)
        self.error = error


def _retry_after(error: PenstockError) -> float:
    return error.retry_after if isinstance(error, ClusterError) else 0.0


def _manifest(value: dict[str, Any]) -> Manifest | None:
    """Return the manifest of an object; None if it is none."""
    _, found = read_object(value)
    if found.refusal:
        return None
    try:
        return check_manifest(found.manifest)
    except ManifestError:
        return None
