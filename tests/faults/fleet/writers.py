"""Writers of policies that compare and set, and go on whatever server dies under them.

An answer that is lost leaves open whether the write holds. So each manifest carries the number of its change and that of the
change that it follows, 0 for none: what is there is read again, and is either the own change, or something that the next attempt
follows. Revisions would not do: replicas of a stream may count a write that was repeated differently.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import aiohttp
import nats
from nats.js.errors import KeyNotFoundError
from nats.js.errors import NotFoundError as NotFoundMessageError
from penstock.agent.errors import ConflictError, NotFoundError
from penstock.agent.policy.manifest import check_manifest
from penstock.agent.policy.sources.nats.writer import delete_policy, put_policy

from tests.faults.fleet.expected import Ledger, Written
from tests.support.kubernetes.api_server import POLICIES

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from nats.aio.client import Client

    from tests.support.kubernetes.api_server import ApiServer

BUCKET = "policies"
REASON = "penstock.dev/reason"
# However many servers die meanwhile.
_DEADLINE = 240.0
_ATTEMPT_SECONDS = 8.0
_PAUSE_SECONDS = 0.2


class Present(NamedTuple):
    """What is there of a name: its revision, 0 for never, and the number of its change; 0 if it is absent."""

    revision: int
    number: int


class Writer(Protocol):
    """Writes to one place.

    Attributes:
        ledger: confirmed writes.
        counts: attempts by how they ended.

    """

    ledger: Ledger
    counts: Counter[str]

    async def read(self, name: str) -> Present:
        """Return what is there."""

    async def put(self, name: str, document: Any, present: Present) -> int:
        """Write *document* if the name is at *present*, and return its revision.

        Raises:
            ConflictError: it is not.

        """

    async def delete(self, name: str, present: Present) -> None:
        """Delete the name if it is at *present*, as :meth:`put` does."""


def random_change(source: random.Random) -> tuple[str, Mapping[str, Any] | None]:
    """Return a name and its new spec; None to delete it."""
    name = f"p{source.randrange(6)}"
    if source.random() < 0.2:
        return name, None
    role = source.choice(["", "decode", "prefill"])
    spec: dict[str, Any] = {
        "selector": {"matchLabels": {"role": role}} if role else {},
        "priority": source.choice([10, 100, 500]),
        "kvLoadFailure": {"action": source.choice(["recompute", "fail", "auto"])},
    }
    if source.random() < 0.6:
        spec["kvLoadFailure"]["maxRecomputeTokens"] = source.randrange(1, 10_000)
    if source.random() < 0.4:
        spec["deferral"] = {"maxStartWait": f"{source.randrange(1, 60)}s"}
    return name, spec


async def change(writer: Writer, number: int, name: str, spec: Mapping[str, Any] | None) -> None:
    """Bring one change to its end; a conflict is read again, as an operator does it."""
    limit = time.monotonic() + _DEADLINE
    while time.monotonic() < limit:
        try:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                if await _attempt(writer, number, name, spec):
                    return
        except ConflictError:
            writer.counts["conflicts"] += 1
        except (NotFoundError, TimeoutError, OSError, nats.errors.Error, aiohttp.ClientError) as error:
            writer.counts[f"without an answer ({type(error).__name__})"] += 1
            await asyncio.sleep(_PAUSE_SECONDS)
    raise AssertionError(f"change {number} of {name} was not taken within {_DEADLINE:g} s: {writer.counts}")


async def read_now(writer: Writer, name: str) -> Present:
    """Return what is there, however often the servers give no answer."""
    limit = time.monotonic() + _DEADLINE
    while True:
        try:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                return await writer.read(name)
        except (TimeoutError, OSError, nats.errors.Error, aiohttp.ClientError):
            assert time.monotonic() < limit, f"no answer for {name} within {_DEADLINE:g} s"
            await asyncio.sleep(_PAUSE_SECONDS)


async def _attempt(writer: Writer, number: int, name: str, spec: Mapping[str, Any] | None) -> bool:
    present = await writer.read(name)
    if spec is None:
        if not present.number:
            writer.ledger.note(name, Written(present.revision, number, None))
            return True
        await writer.delete(name, present)
        # The next turn reads at which revision it is gone.
        return False
    if present.number == number:
        # An earlier attempt, whose answer was lost.
        revision = present.revision
    else:
        document = {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "TransferPolicy",
            "metadata": {"name": name, "annotations": {REASON: f"change {number} after {present.number}"}},
            "spec": spec,
        }
        revision = await writer.put(name, document, present)
    writer.ledger.note(name, Written(revision, number, spec))
    return True


def number_of(document: Any) -> tuple[int, int]:
    """Return the number of the change that a manifest is, and the number of that which it follows."""
    _, number, _, follows = document["metadata"]["annotations"][REASON].split()
    return int(number), int(follows)


class NatsWriter:
    """Writes to the bucket as the user ``ops``."""

    def __init__(self, client: Client, ledger: Ledger) -> None:
        self.ledger = ledger
        self.counts: Counter[str] = Counter()
        self._stream = client.jetstream(timeout=3)

    async def read(self, name: str) -> Present:
        """Return what is there."""
        bucket = await self._stream.key_value(BUCKET)
        try:
            entry = await bucket.get(name)
        except KeyNotFoundError as gone:
            return Present(gone.entry.revision or 0 if gone.entry is not None else 0, 0)
        return Present(entry.revision or 0, number_of(json.loads(entry.value or b""))[0])

    async def put(self, name: str, document: Any, present: Present) -> int:
        """Write at that revision."""
        bucket = await self._stream.key_value(BUCKET)
        return await put_policy(bucket, check_manifest(document), present.revision if present.number else 0)

    async def delete(self, name: str, present: Present) -> None:
        """Delete at that revision."""
        await delete_policy(await self._stream.key_value(BUCKET), name, present.revision)

    async def lost_updates(self) -> list[str]:
        """Return each change of the bucket that does not follow the one before it of its key, as the stream's leader has them.

        A change may be there twice: a server that dies between storing and answering makes the writer try again.
        """
        stream = f"KV_{BUCKET}"
        state = (await self._stream.stream_info(stream)).state
        newest: dict[str, int] = {}
        found = []
        for revision in range(state.first_seq, state.last_seq + 1):
            try:
                message = await self._stream.get_msg(stream, revision)
            except NotFoundMessageError:
                # 64 later changes of its key pushed it out.
                continue
            name = (message.subject or "").rpartition(".")[2]
            if "KV-Operation" in (message.headers or {}):
                newest[name] = 0
                continue
            number, follows = number_of(json.loads(message.data or b""))
            before = newest.get(name, follows)
            if before not in (follows, number):
                found.append(f"{name}: change {number} at {revision} follows {follows}, not {before}")
            newest[name] = number
        return found


class ClusterWriter:
    """Writes objects as an administrator of the API server; the only writer, for a deletion has no revision there."""

    def __init__(self, cluster: ApiServer, ledger: Ledger) -> None:
        self.ledger = ledger
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._order = 0
        self._versions: dict[str, str] = {}

    async def read(self, name: str) -> Present:
        """Return what is there."""
        status, answer = await self._cluster.call("GET", f"{POLICIES}/{name}")
        self._order += 1
        if status == 404:
            return Present(self._order, 0)
        self._check(status, answer)
        self._versions[name] = answer["metadata"]["resourceVersion"]
        return Present(self._order, number_of(answer)[0])

    async def put(self, name: str, document: Any, present: Present) -> int:
        """Write at that revision."""
        if not present.number:
            status, answer = await self._cluster.call("POST", POLICIES, document)
        else:
            metadata = {**document["metadata"], "resourceVersion": self._versions[name]}
            status, answer = await self._cluster.call(
                "PUT", f"{POLICIES}/{name}", {**document, "metadata": metadata}
            )
        self._check(status, answer)
        return present.revision

    async def delete(self, name: str, present: Present) -> None:
        """Delete at that revision."""
        condition = {"preconditions": {"resourceVersion": self._versions[name]}}
        self._check(*await self._cluster.call("DELETE", f"{POLICIES}/{name}", condition))

    def _check(self, status: int, answer: Any) -> None:
        if status == 409:
            raise ConflictError("the API server has another version")
        if status >= 300:
            raise OSError(f"the API server answered {status}: {str(answer)[:200]}")
