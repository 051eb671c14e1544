"""Which engines are pairs, of those that one agent or a relay knows; and each pair with its verdict. Pure.

Two engines are a pair if one of them knows the other as its peer, or if by their roles KV blocks may move between them: one
prefill, one decode (or ``both``), the same model and family of connectors, and no different ``pool``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.pairs.side_facts import (
    POOL_LABEL,
    family_of,
    geometry_of,
    peer_geometry,
    revision_of,
    transport_of,
)
from penstock.agent.pairs.speed_limits import slowness
from penstock.agent.pairs.verdict import compare_sides
from penstock.agent.quoted_errors import without_advice
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import (
    CHANNEL_EC,
    ERROR_TYPE_INCOMPATIBLE,
    ERROR_TYPE_UNSPECIFIED,
    ROLE_BOTH,
    ROLE_DECODE,
    ROLE_PREFILL,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_PAIRS: Final = 10_000
"""Pairs of one answer; the worst stay."""

_READS: Final = (ROLE_DECODE, ROLE_BOTH)
_WRITES: Final = (ROLE_PREFILL, ROLE_BOTH)


class _Known(NamedTuple):
    """A peer that one engine has, which is another engine that is known here."""

    engine: int
    other: int
    peer: admin.PairPeer


def list_pairs(engines: Sequence[admin.PairEngine], limit: int = MAX_PAIRS) -> admin.ListPairsResponse:
    """Return all pairs of *engines*, and of these with peers that are not among them, the worst first."""
    known, strangers = _resolve(engines)
    met: dict[tuple[int, int], list[_Known]] = {}
    for each in known:
        met.setdefault(_ordered(engines, each.engine, each.other), []).append(each)
    indices = dict.fromkeys(itertools.chain(met, _by_role(engines)))
    pairs = [_pair(engines[one], engines[other], met.get((one, other), ()), one) for one, other in indices]
    pairs += [_stranger(engines[index], peer) for index, peer in strangers]
    pairs.sort(key=_badness)
    return admin.ListPairsResponse(pairs=pairs[:limit], engines=engines, left_out=max(0, len(pairs) - limit))


def _badness(pair: admin.Pair) -> tuple[int, int, int, str, str, str]:
    worst = max((each.effect for each in pair.differences), default=0)
    names = (
        f"{pair.key.server}/{pair.key.engine}",
        f"{pair.peer_key.server}/{pair.peer_key.engine}",
        pair.peer.address,
    )
    return (-pair.compatible, -worst, not slowness(pair.speed), *names)


def _resolve(engines: Sequence[admin.PairEngine]) -> tuple[list[_Known], list[tuple[int, admin.PairPeer]]]:
    """Return the peers that are engines known here, and those that are not.

    An engine id is unique; an address counts where one engine alone has it: ``localhost`` is in many pods.
    """
    by_id: dict[str, int] = {}
    by_address: dict[str, set[int]] = {}
    for index, engine in enumerate(engines):
        by_id[engine.facts.kv_engine_id] = index
        by_address.setdefault(engine.facts.side_channel, set()).add(index)
    by_id.pop("", None)
    by_address.pop("", None)
    known: list[_Known] = []
    strangers: list[tuple[int, admin.PairPeer]] = []
    for index, engine in enumerate(engines):
        for peer in engine.peers:
            there = by_address.get(peer.status.peer.address, set())
            other = by_id.get(peer.status.peer.engine_id, next(iter(there)) if len(there) == 1 else index)
            if other != index:
                known.append(_Known(index, other, peer))
            else:
                strangers.append((index, peer))
    return known, strangers


def _ordered(engines: Sequence[admin.PairEngine], index: int, other: int) -> tuple[int, int]:
    """Return the two engines of a pair, the one that computes with the blocks first; the same whichever is given first."""
    writes = engines[index].role == ROLE_PREFILL or engines[other].role == ROLE_DECODE
    reads = engines[index].role == ROLE_DECODE or engines[other].role == ROLE_PREFILL
    if reads == writes:  # two of one role, or without one
        return min(index, other), max(index, other)
    return (index, other) if reads else (other, index)


def _by_role(engines: Sequence[admin.PairEngine]) -> Iterator[tuple[int, int]]:
    """Yield the pairs that may become some: of engines of one model, connector and pool."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, engine in enumerate(engines):
        if engine.facts.kv_connector:
            key = engine.facts.model, family_of(engine.facts.kv_connector)
            groups.setdefault(key, []).append(index)
    for members in groups.values():
        for one, other in itertools.combinations(members, 2):
            first, second = _ordered(engines, one, other)
            fits = engines[first].role in _READS and engines[second].role in _WRITES
            if fits and not _apart(engines[first], engines[second]):
                yield first, second


def _apart(one: admin.PairEngine, other: admin.PairEngine) -> bool:
    pools = one.labels.get(POOL_LABEL), other.labels.get(POOL_LABEL)
    return all(pools) and pools[0] != pools[1]


def _pair(
    decode: admin.PairEngine, prefill: admin.PairEngine, met: Iterable[_Known], decode_index: int
) -> admin.Pair:
    """Return a pair of two engines that are known here; *met*: as peers of each other."""
    # What the decode side says of its peer comes first.
    met = sorted(met, key=lambda each: (each.engine != decode_index, not each.peer.status.connected))
    connected = any(each.peer.status.connected for each in met)
    verdict = compare_sides(decode, prefill, connected=connected)
    pair = admin.Pair(
        key=decode.key,
        peer_key=prefill.key,
        compatible=verdict.compatible,
        differences=verdict.differences,
        weights=verdict.weights,
        geometry=geometry_of(decode),
        peer_geometry=geometry_of(prefill),
        revision=revision_of(decode.labels),
        peer_revision=revision_of(prefill.labels),
        transport=transport_of(decode),
        connected=connected,
        reason=verdict.reason,
    )
    if met:
        pair.peer.CopyFrom(met[0].peer.status.peer)
    speeds = [speed for each in met for speed in each.peer.speeds]
    if speeds:
        pair.speed.CopyFrom(speeds[0])
    return pair


def _stranger(engine: admin.PairEngine, peer: admin.PairPeer) -> admin.Pair:
    """Return a pair with a peer of which only this engine tells."""
    status = peer.status
    pair = admin.Pair(
        key=engine.key,
        peer=status.peer,
        compatible=admin.PAIR_COMPATIBILITY_UNKNOWN,
        weights=admin.PAIR_WEIGHTS_UNKNOWN,
        geometry=geometry_of(engine),
        peer_geometry=peer_geometry(status),
        revision=revision_of(engine.labels),
        transport=transport_of(engine),
        connected=status.connected,
        reason="no handshake yet",
    )
    if status.connected:
        pair.compatible, pair.reason = admin.PAIR_COMPATIBILITY_YES, "they have shaken hands"
    elif status.handshake_error == ERROR_TYPE_INCOMPATIBLE:
        pair.compatible = admin.PAIR_COMPATIBILITY_NO
        factors = ", ".join(status.handshake_factors)
        pair.reason = f"the handshake failed: {factors or without_advice(status.handshake_error_text)}"
    elif status.handshake_error != ERROR_TYPE_UNSPECIFIED:
        pair.reason = f"the last handshake failed: {without_advice(status.handshake_error_text)}"
    elif peer.speeds and peer.speeds[0].channel == CHANNEL_EC:
        pair.reason = "encoder outputs move without a handshake"
    if peer.speeds:
        pair.speed.CopyFrom(peer.speeds[0])
    return pair
