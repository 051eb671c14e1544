"""What a decode engine says of its requests, as batches that are sent again and again with other ids."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
from penstock.proto.v1.common_pb2 import DECIDED_BY_VLLM, OUTCOME_FAILED, ROLE_DECODE
from penstock.proto.v1.ingest_pb2 import Batch

from benchmarks.load.mixes import FULL
from tests.support.agent.batches import add_transfers, deferral_end, deferral_start, transfer_failure
from tests.support.agent.stories import closed, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.proto.v1.events_pb2 import Event

# Of a request that goes well: a wait's start and end, its own end, a transfer.
_ENTRIES: Final = 4
REQUESTS: Final = FULL // _ENTRIES
"""Requests of a full batch."""
# One request in so many fails.
_FAILS: Final = 50
_MS: Final = 1_000_000
_QUEUE, _WAIT, _PREFILL, _ALL = 5 * _MS, 25 * _MS, 40 * _MS, 100 * _MS
# The end of vLLM's ids; what comes before it is the client's.
_SUFFIX: Final = "-00000000"
_PLACE: Final = re.compile(rb"chatcmpl-([0-9a-f]{32})")
_DIGITS: Final = 32


class Template:
    """A batch without a number whose requests get other ids each time.

    Args:
        batch: its requests are named by :func:`request_name`.

    """

    def __init__(self, batch: Batch) -> None:
        body = batch.SerializeToString()
        found = [(match.start(1), match[1]) for match in _PLACE.finditer(body)]
        numbers: dict[bytes, int] = {}
        which = [numbers.setdefault(name, len(numbers)) for _, name in found]
        self._body = np.frombuffer(body, np.uint8)
        self._which = np.array(which)
        self._places = np.array([place for place, _ in found])[:, None] + np.arange(_DIGITS)
        self.requests = len(numbers)

    def renamed(self, rng: np.random.Generator) -> tuple[bytes, str]:
        """Return the batch with random ids, and vLLM's id of its first request."""
        digits = rng.bytes(self.requests * _DIGITS // 2).hex().encode()
        names = np.frombuffer(digits, np.uint8).reshape(self.requests, _DIGITS)
        body = self._body.copy()
        body[self._places] = names[self._which]
        return body.tobytes(), f"chatcmpl-{digits[:_DIGITS].decode()}{_SUFFIX}"


def request_name(number: int) -> str:
    """Return the id of a request of a template."""
    return f"chatcmpl-{number:032x}{_SUFFIX}"


def templates(peers: Sequence[str], now: int) -> list[Template]:
    """Return batches that end at *now*, nanoseconds since 1970, and in which each peer is read from at least once."""
    count = -(-len(peers) // REQUESTS)
    return [
        Template(_batch([peers[(first + number) % len(peers)] for number in range(REQUESTS)], now))
        for first in range(0, count * REQUESTS, REQUESTS)
    ]


def transfers(peer: str, now: int) -> Template:
    """Return a full batch of transfers from *peer*, each of a request of its own."""
    batch = add_transfers(Batch(), [request_name(number) for number in range(FULL)], peer=peer)
    batch.transfers.end_time_unix_nano[:] = [now - number for number in range(FULL)]
    return Template(batch)


def _batch(peers: Sequence[str], now: int) -> Batch:
    events: list[Event] = []
    loaded: dict[str, str] = {}
    for number, peer in enumerate(peers):
        name = request_name(number)
        if number % _FAILS == _FAILS - 1:
            events += _failed(name, peer, now)
        else:
            events += _good(name, peer, now)
            loaded[name] = peer
    batch = add_transfers(Batch(events=events), list(loaded))
    strings = {peer: len(batch.strings) + number for number, peer in enumerate(dict.fromkeys(peers))}
    batch.strings.extend(strings)
    batch.transfers.peer[:] = [strings[peer] for peer in loaded.values()]
    batch.transfers.end_time_unix_nano[:] = [now - number for number in range(len(loaded))]
    return batch


def _good(name: str, peer: str, now: int) -> Iterator[Event]:
    began = now - _ALL
    gates = {"queue_nano": _QUEUE, "transfer_nano": _WAIT, "own_prefill_nano": _PREFILL}
    yield deferral_start(name, peer=peer, time_ns=began + _QUEUE)
    yield deferral_end(name, peer=peer, start_ns=began + _QUEUE, time_ns=began + _QUEUE + _WAIT)
    yield closed(
        name, time_ns=now, kv_role=ROLE_DECODE, peer={"address": peer}, gates=gates, arrival_time_unix_nano=began,
        scheduled_time_unix_nano=began + _QUEUE + _WAIT, first_token_time_unix_nano=began + _QUEUE + _WAIT + _PREFILL,
        external_cached_tokens=400, external_request_id=name.removesuffix(_SUFFIX),
    )  # fmt: skip


def _failed(name: str, peer: str, now: int) -> Iterator[Event]:
    yield transfer_failure(name, peer=peer, time_ns=now, error_text="connection refused")
    yield outcome(
        name, OUTCOME_FAILED, time_ns=now, peer={"address": peer}, decided_by=DECIDED_BY_VLLM, policy_hash=""
    )
