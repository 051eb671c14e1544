"""Messages about the loads and saves of a connector that is only known by its base interface.

With a step go ``penstock_loads`` and ``penstock_saves`` on the connector's metadata: what the scheduler has decided to load
with it, and for which requests the connector saves while the step runs, where it says so (``kv/base/connector_adapters.py``). Back comes,
in the :class:`~penstock.instrumentation.vllm.messages.worker_report.WorkerReport`, the result on each rank. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming import UNKNOWN, Peer

if TYPE_CHECKING:
    from collections.abc import Iterable

LOADS: Final = "penstock_loads"
"""The attribute of a step's metadata; absent where nothing is loaded."""

SAVES: Final = "penstock_saves"
"""The attribute with the ids of the requests that are saved in the step itself; absent where there are none."""

LOADS_MAX: Final = 256
"""Loads, and saves, of one connector that are sent with one step."""

HOST: Final = "host"
"""The place of KV that comes from this machine's memory."""
P2P: Final = "p2p"
"""The place of KV that came from another engine's memory by vLLM's P2P tier; the request names the engine."""

# Where KV comes from that never left this machine, in vLLM's own words (CacheHitSource). The others name no place: p2p is any engine.
_PLACES: Final = frozenset({HOST, "disk"})


class KvLoad(NamedTuple):
    """A load that begins with a step.

    Attributes:
        request_id: vLLM's internal id.
        tokens: how many are loaded.
        waits: the request waits for it; otherwise the step does.
        place: ``host``, ``disk`` or ``p2p`` where the connector says so; else empty.

    """

    request_id: str
    tokens: int
    waits: bool
    place: str = ""


class FinishedTransfer(NamedTuple):
    """A load or a save of one request that has ended on one rank.

    Attributes:
        request_id: vLLM's internal id; empty where the connector does not name it.
        connector: the connector's class.
        rank: of the worker.
        direction: ``DIRECTION_*``.
        start_ns: wall clock; the end where the beginning is not known.
        duration_ns: 0 where it is not known.
        bytes: 0 where they are not known.
        failed: the connector said that it failed.
        waits: a load that the request waited for.
        place: as in :class:`KvLoad`.
        uncertainty_ns: by how much the end may have been before it was seen; 0 for not at all.

    """

    request_id: str
    connector: str
    rank: int
    direction: int
    start_ns: int
    duration_ns: int
    bytes: int = 0
    failed: bool = False
    waits: bool = False
    place: str = ""
    uncertainty_ns: int = 0

    @property
    def end_ns(self) -> int:
        """When it ended, wall clock."""
        return self.start_ns + self.duration_ns

    @property
    def loads(self) -> bool:
        """Whether it is a load."""
        return self.direction == c.DIRECTION_RECEIVE


class BrokenBlocks(NamedTuple):
    """Blocks that one rank's connector says were not loaded."""

    connector: str
    rank: int
    blocks: frozenset[int]


def loads_of(metadata: Any) -> tuple[KvLoad, ...]:
    """Return the loads that begin with a step; *metadata* is the connector's, or None."""
    found: tuple[KvLoad, ...] = getattr(metadata, LOADS, ())
    return found


def saves_of(metadata: Any) -> tuple[str, ...]:
    """Return the requests that are saved in a step; *metadata* is the connector's, or None."""
    found: tuple[str, ...] = getattr(metadata, SAVES, ())
    return found


def place_of(sources: Iterable[Any]) -> str:
    """Return the place that vLLM's ``CacheHitSource`` names, if there is one and it is no other engine; else empty."""
    found = _words(sources)
    place = next(iter(found)) if len(found) == 1 else ""
    return place if place in _PLACES else ""


def tier_place_of(sources: Iterable[Any], *, promoted: bool) -> str:
    """Return the place of a load through the tiers of an ``OffloadingConnector``, by vLLM's ``CacheHitSource``; else empty.

    vLLM names the tier that each block had before it was promoted into this machine's memory. *promoted*: what the P2P tier
    has promoted is a transfer of its own, so that the rest is a copy from memory.
    """
    found = _words(sources)
    if P2P in found and promoted:
        found = found - {P2P} | {HOST}
    return P2P if found == {P2P} else place_of(found)


def _words(sources: Iterable[Any]) -> set[str]:
    return {str(getattr(each, "value", each)) for each in sources}


def peer_at(place: str, peer: Peer | None) -> Peer:
    """Return the other end of a transfer: the *place*, or else the request's *peer*, or else unknown; of ``p2p`` always the latter."""
    if place and place != P2P:
        return Peer(place)
    return peer if peer is not None else Peer(UNKNOWN)
