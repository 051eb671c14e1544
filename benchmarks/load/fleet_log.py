"""A log as a fleet writes it: what 64 decode engines say of requests that read from 1,000 peers, some of which fail."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from penstock.proto.v1.common_pb2 import DECIDED_BY_VLLM, OUTCOME_FAILED, ROLE_DECODE
from penstock.proto.v1.ingest_pb2 import Batch

from benchmarks.load.mixes import request_id
from tests.support.agent.batches import add_transfers, deferral_end, deferral_start, transfer_failure
from tests.support.agent.stories import closed, outcome

if TYPE_CHECKING:
    from penstock.agent.model import Source
    from penstock.proto.v1.events_pb2 import Event

    from tests.support.agent.admin_server import AdminHarness

ENGINES: Final = 64
PEERS: Final = 1_000
# Of a batch: an engine that is not flooded sends what it has once a second.
ENTRIES: Final = 128
# Batches of a kind; each is written with new requests.
_DIFFERENT: Final = 64
# Batches that the writer has at a time, and those between two looks at the size.
_IN_FLIGHT, _STEP = 32, 2_048
_MS: Final = 1_000_000
_PREFILL_MS, _WAIT_MS, _BATCH_MS = 40, 25, 1_000
_REQUEST: Final = re.compile(rb"chatcmpl-[0-9a-f]{32}-[0-9a-f]{8}")


def _peer(rng: random.Random) -> str:
    return f"10.1.{rng.randrange(PEERS // 250)}.{rng.randrange(250)}:5600"


def _good(rng: random.Random, name: str, at: int) -> list[Event]:
    peer, began = _peer(rng), at - 100 * _MS
    gates = {"queue_nano": 5 * _MS, "transfer_nano": _WAIT_MS * _MS, "own_prefill_nano": _PREFILL_MS * _MS}
    return [
        deferral_start(name, peer=peer, time_ns=began),
        deferral_end(name, peer=peer, start_ns=began, time_ns=began + _WAIT_MS * _MS),
        closed(
            name, time_ns=at, kv_role=ROLE_DECODE, peer={"address": peer}, gates=gates, arrival_time_unix_nano=began,
            first_token_time_unix_nano=began + (5 + _WAIT_MS + _PREFILL_MS) * _MS, external_cached_tokens=400,
        ),
    ]  # fmt: skip


def _failed(rng: random.Random, name: str, at: int) -> list[Event]:
    peer = _peer(rng)
    return [
        transfer_failure(name, peer=peer, time_ns=at, error_text="connection refused"),
        outcome(name, OUTCOME_FAILED, time_ns=at, peer={"address": peer}, decided_by=DECIDED_BY_VLLM),
    ]


def _batch(rng: random.Random, now: int, *, failures: bool) -> Batch:
    events: list[Event] = []
    names: list[str] = []
    while len(events) + len(names) < ENTRIES:
        name, at = request_id(rng), now - rng.randrange(_BATCH_MS * _MS)
        if failures:
            events += _failed(rng, name, at)
        else:
            events += _good(rng, name, at)
            names.append(name)
    batch = Batch(events=events[: ENTRIES - len(names)])
    return add_transfers(batch, names, peer=_peer(rng)) if names else batch


def _renamed(batch: bytes, rng: random.Random) -> bytes:
    """Return *batch* with other requests: the index of the journal holds each id."""
    names: defaultdict[bytes, bytes] = defaultdict(lambda: request_id(rng).encode())
    return _REQUEST.sub(lambda found: names[found[0]], batch)


class FleetLog:
    """Writes into the journal of a running admin service."""

    def __init__(self, harness: AdminHarness) -> None:
        self._harness = harness
        self._rng = random.Random(0)
        self._sources = [harness.source(str(number)) for number in range(ENGINES)]
        self._next = dict.fromkeys((source.epoch for source in self._sources), 0)

    @property
    def size(self) -> int:
        """Bytes of the journal in use."""
        return self._harness.journal.usage.used_bytes

    def fill(self, share: float) -> int:
        """Write calm requests until that share of the journal's limit is in use; return the number of entries."""
        batches = 0
        while self.size < share * self._harness.journal.usage.limit_bytes:
            batches += self._write(_STEP, failures=False)
        return batches * ENTRIES

    def fail(self, failures: int) -> None:
        """Write so many failed loads, of all peers."""
        self._write(2 * failures // ENTRIES, failures=True)

    def _write(self, number: int, *, failures: bool) -> int:
        now = time.time_ns()
        made = [
            _batch(self._rng, now, failures=failures).SerializeToString()
            for _ in range(min(number, _DIFFERENT))
        ]

        async def write() -> None:
            for first in range(0, number, _IN_FLIGHT):
                places = range(first, min(first + _IN_FLIGHT, number))
                await asyncio.gather(
                    *(
                        self._append(self._sources[place % ENGINES], made[place % len(made)])
                        for place in places
                    )
                )

        self._harness.run(write())
        return number

    async def _append(self, source: Source, batch: bytes) -> None:
        copy = Batch.FromString(_renamed(batch, self._rng))
        copy.epoch = source.epoch
        copy.seq = self._next[source.epoch] = self._next[source.epoch] + 1
        await self._harness.journal.append(source, copy, copy.SerializeToString())
