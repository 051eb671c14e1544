"""Lists the objects once, watches from there, and goes on after any trouble; deletions that follow each other are one set."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from penstock.agent.errors import ClusterError
from penstock.agent.policy.kubernetes.api_client import MAX_OBJECTS, ApiClient
from penstock.agent.policy.kubernetes.objects import ClusterObject, ObjectSet, read_object, resource_version

if TYPE_CHECKING:
    from typing import Any

    from penstock.agent.policy.kubernetes.access import ClusterAccess

# Between attempts, before jitter: doubled from the first to the last.
_FIRST_SECONDS = 0.5
_LAST_SECONDS = 30.0
# A watch that lasts so long was no failed attempt.
_STEADY_SECONDS = 5.0


SETTLE_SECONDS = 0.5
LONGEST_SECONDS = 5.0


class ObjectSink(Protocol):
    """What the follower calls, on the loop."""

    def connected(self) -> None:
        """Note that the API server answers."""

    def away(self, error: str) -> None:
        """Note that it does not; *error* is one sentence without a secret."""

    async def hand_over(self, found: ObjectSet) -> float:
        """Take all objects; return 0, or the seconds after which all are listed and handed over again."""


class ObjectFollower:
    """Follows the TransferPolicy objects of one namespace."""

    def __init__(self, access: ClusterAccess) -> None:
        """Do not connect yet."""
        self._access = access
        self._attempts = 0
        self._objects: dict[str, ClusterObject] = {}
        self._revision = ""
        self._list_at: float | None = None
        # Others follow a deletion, and discovery learns that the definition goes.
        self._settling = Settling()
        # The names that were handed over last; None before the first time.
        self._names: frozenset[str] | None = None
        # When the last list of this attempt began.
        self._listed_at: float | None = None

    async def run(self, sink: ObjectSink) -> None:
        """Follow the objects until cancelled.

        A broken watch resumes at its last resource version. The server no longer has that version: all are listed again.
        """
        while True:
            try:
                # A new client for each attempt: CA file and address may have changed.
                async with ApiClient(self._access) as client:
                    while True:
                        await self._follow(client, sink)
            except ClusterError as error:
                if error.outdated:
                    self._revision = ""
                    if not self._just_listed():
                        # The server answers; only the revision is too old.
                        continue
                sink.away(str(error))
                # With jitter in addition: agents that were refused together do not return together.
                await asyncio.sleep(error.retry_after + self._pause())
                self._listed_at = None

    async def _follow(self, client: ApiClient, sink: ObjectSink) -> None:
        """List if it has to be, and watch until the watch ends."""
        loop = asyncio.get_running_loop()
        if not self._revision or (self._list_at is not None and loop.time() >= self._list_at):
            self._listed_at = loop.time()
            self._objects, self._revision = await client.list_objects()
            if self._some_are_gone():
                await asyncio.sleep(SETTLE_SECONDS)
            await self._check_defined(client)
            # Not before: a list that failed is repeated.
            self._list_at = None
            sink.connected()
            await self._hand_over(sink)
        elif self._settling.until is not None:
            await self._check_defined(client)
            await self._hand_over(sink)
        began = loop.time()
        expired = await self._watch(client, sink)
        if not expired and loop.time() - began < _STEADY_SECONDS:
            # A server that accepts each watch and ends it at once.
            await asyncio.sleep(self._pause())
        elif not expired:
            self._attempts = 0

    async def _watch(self, client: ApiClient, sink: ObjectSink) -> bool:
        """Watch until the server ends it; return whether it was time to list, or to look at what is gone, before."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with (
                asyncio.timeout_at(self._list_at) as limit,
                aclosing(client.watch(self._revision)) as changes,
            ):
                async for events in changes:
                    if not events:
                        sink.connected()
                    elif self._take(events):
                        # What is handed over is stored: it is not interrupted.
                        limit.reschedule(None)
                        if self._some_are_gone():
                            self._settling.deleted(loop.time())
                        elif self._settling.until is None:
                            await self._hand_over(sink)
                        times = [each for each in (self._list_at, self._settling.until) if each is not None]
                        limit.reschedule(min(times, default=None))
                    if (events and not self._just_listed()) or loop.time() - began > _STEADY_SECONDS:
                        self._attempts = 0
        except TimeoutError:
            return True
        return False

    def _some_are_gone(self) -> bool:
        """Return whether an object is gone that was handed over."""
        return self._names is not None and not self._names <= self._objects.keys()

    async def _check_defined(self, client: ApiClient) -> None:
        """Check that objects that are gone are not gone with their definition.

        Raises:
            ClusterError: they are.

        """
        if self._names is not None and not self._some_are_gone():
            return
        if not await client.is_defined():
            raise ClusterError(
                "the definition of TransferPolicy objects is being deleted, and all objects with it; "
                "apply deploy/crd and the objects again",
                outdated=True,
            )

    async def _hand_over(self, sink: ObjectSink) -> None:
        self._settling.reset()
        self._names = frozenset(self._objects)
        again = await sink.hand_over(ObjectSet(dict(self._objects), self._revision))
        self._list_at = asyncio.get_running_loop().time() + again if again else None

    def _take(self, events: list[tuple[str, Any]]) -> bool:
        """Apply *events* and return whether a policy changed; a write of status changes none."""
        changed = False
        try:
            for kind, value in events:
                if kind in {"ADDED", "MODIFIED"}:
                    name, found = read_object(value)
                    changed |= not found.same_policy(self._objects.get(name))
                    self._objects[name] = found
                elif kind == "DELETED":
                    changed |= self._objects.pop(read_object(value)[0], None) is not None
                self._revision = resource_version(value)
        except ValueError as error:
            raise ClusterError(
                f"the watch sent an object that is no policy: {error}", outdated=True
            ) from None
        if len(self._objects) > MAX_OBJECTS:
            raise ClusterError(
                f"namespace {self._access.namespace} has more than {MAX_OBJECTS} TransferPolicy objects; combine some",
                outdated=True,
            )
        return changed

    def _just_listed(self) -> bool:
        """Return whether this attempt has listed all within the last 5 s."""
        if self._listed_at is None:
            return False
        return asyncio.get_running_loop().time() - self._listed_at < _STEADY_SECONDS

    def _pause(self) -> float:
        """Return the seconds until the next attempt: with jitter, so that agents do not return all at once."""
        most = min(_FIRST_SECONDS * 2**self._attempts, _LAST_SECONDS)
        self._attempts = min(self._attempts + 1, 10)
        return random.uniform(most / 2, most)  # noqa: S311  (no secret)


class Settling:
    """When a set without objects that were there is handed over: 0.5 s after the last deletion, 5 s after the first at most.

    All objects of a namespace, or of a definition, are deleted one by one; a loaded API server takes its time between them.

    Attributes:
        until: when it is handed over, in the seconds of the caller's clock; None while no object is gone.

    """

    def __init__(self) -> None:
        self.until: float | None = None
        self._first = 0.0

    def deleted(self, now: float) -> None:
        """Note a deletion."""
        if self.until is None:
            self._first = now
        self.until = min(now + SETTLE_SECONDS, self._first + LONGEST_SECONDS)

    def reset(self) -> None:
        """Forget the deletions: the set is handed over."""
        self.until = None
