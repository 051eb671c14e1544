"""Full batches as engines send them: three mixes of entries.

`engine` is what a pair of engines, prefill and decode over NIXL with one rank each, emits about a request without trouble, by its hooks: prefill
the request's end and its lease's, decode a wait's start and end, the request's end, and one transfer. So of six entries five are events. With more
ranks there are more transfers, one from each: with four, five events and four samples.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from penstock.proto.v1.common_pb2 import ROLE_DECODE, ROLE_PREFILL
from penstock.proto.v1.events_pb2 import LEASE_ENDING_READ
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import TIME, add_transfers, deferral_end, deferral_start, event

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping

    from penstock.proto.v1.events_pb2 import Event

FULL: Final = 512
"""Entries of a full batch, as the engine's exporter sends it."""

_PEERS: Final = 8
_NANO: Final = 1_000_000_000


def request_id(rng: random.Random) -> str:
    """Return a random id like vLLM's."""
    return f"chatcmpl-{rng.getrandbits(128):032x}-{rng.getrandbits(32):08x}"


def _peer(rng: random.Random) -> str:
    return f"10.0.0.{rng.randrange(_PEERS)}:5600"


def _closed(name: str, peer: str, time: int, role: int, remote: str = "") -> Event:
    return event(
        "request_closed", name, time_ns=time, kv_role=role, remote_request_id=remote, peer={"address": peer},
        arrival_time_unix_nano=time - _NANO // 10, scheduled_time_unix_nano=time - _NANO // 11,
        first_token_time_unix_nano=time - _NANO // 20, prompt_tokens=512, output_tokens=64,
        external_cached_tokens=480, finish_reason="stop", external_request_id=name.rpartition("-")[0],
    )  # fmt: skip


def decode_events(name: str, peer: str, time: int, remote: str = "") -> list[Event]:
    """Return decode's events of a request: deferral and end."""
    began = time - _NANO // 10
    return [
        deferral_start(name, peer=peer, time_ns=began, remote_request_id=remote),
        deferral_end(name, peer=peer, start_ns=began, time_ns=began + _NANO // 100),
        _closed(name, peer, time, ROLE_DECODE, remote),
    ]


def prefill_events(name: str, peer: str, time: int) -> list[Event]:
    """Return prefill's events of a request: its end, and the read of its blocks."""
    read = event(
        "lease_closed", name, time_ns=time + _NANO // 50, ending=LEASE_ENDING_READ,
        start_time_unix_nano=time, blocks=32, readers=1, connector="NixlConnector",
    )  # fmt: skip
    return [_closed(name, peer, time, ROLE_PREFILL), read]


def _times() -> Iterator[int]:
    time = TIME
    while True:
        time += 500_000
        yield time


def events(rng: random.Random) -> Batch:
    """Return a batch of events only: decode's."""
    found: list[Event] = []
    times = _times()
    while len(found) < FULL:
        found += decode_events(request_id(rng), _peer(rng), next(times), request_id(rng))
    return Batch(events=found[:FULL])


def samples(rng: random.Random) -> Batch:
    """Return a batch of samples only, each of a request of its own."""
    return add_transfers(Batch(), [request_id(rng) for _ in range(FULL)], peer=_peer(rng))


def engine(rng: random.Random) -> Batch:
    """Return a batch of what a pair of engines says of its requests."""
    found: list[Event] = []
    names: list[str] = []
    times = _times()
    while len(found) + len(names) < FULL:
        name, peer, time = request_id(rng), _peer(rng), next(times)
        remote = request_id(rng)
        found += [*prefill_events(remote, peer, time), *decode_events(name, peer, time, remote)]
        names.append(name)
    # As they come: requests overlap, and a wait begins before it ends.
    found.sort(key=attrgetter("time_unix_nano"))
    return add_transfers(Batch(events=found[: FULL - len(names)]), names, peer=_peer(rng))


MIXES: Final[Mapping[str, Callable[[random.Random], Batch]]] = {
    "events": events,
    "samples": samples,
    "engine": engine,
}
