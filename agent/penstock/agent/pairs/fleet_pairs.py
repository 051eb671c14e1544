"""Which engines are pairs, of those that one agent or a relay knows; each pair with its verdict, and whether it is slow. Pure.

Two engines are a pair if one of them knows the other as its peer, or if by their roles KV blocks may move between them: one
prefill, one decode (or ``both``), the same model and family of connectors, and no different ``pool``.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.errors import without_advice
from penstock.agent.limits import SLOW_SPEED_RATIO
from penstock.agent.pairs.role_pairs import Comparisons, count_pairs, may_pair, ordered, worst_pairs
from penstock.agent.pairs.shared_ids import shared_ids
from penstock.agent.pairs.verdict import compare_sides, geometry_of, peer_geometry, revision_of, transport_of
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import (
    ADDRESS_OWNER_OTHER,
    CHANNEL_EC,
    ERROR_TYPE_INCOMPATIBLE,
    ERROR_TYPE_UNSPECIFIED,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.agent.pairs.shared_ids import SharedId
    from penstock.proto.v1.snapshot_pb2 import PeerStatus

MAX_PAIRS: Final = 10_000
"""Pairs of one answer; the worst stay."""
# Bytes of one answer: what engines tell of themselves is in each of their pairs.
_MAX_BYTES: Final = 8 << 20
# Engines with one id that a reason names.
_NAMED: Final = 4


class _Known(NamedTuple):
    """A peer that one engine has, which is another engine that is known here."""

    engine: int
    other: int
    peer: admin.PairPeer


class _FoundPair(NamedTuple):
    """A pair that may be in the answer.

    Attributes:
        badness: the worst first, then by names.
        order: of two that are equally bad.
        decode: the engine's index.
        prefill: that of its peer; -1 for one that is not known here.
        peer: one that is not known here.

    """

    badness: tuple[int, int, bool, str, str, str]
    order: int
    decode: int
    prefill: int
    peer: admin.PairPeer | None = None


def list_pairs(engines: Sequence[admin.PairEngine], limit: int = MAX_PAIRS) -> admin.ListPairsResponse:
    """Return the pairs of *engines*, and of these with peers that are not among them, the worst first.

    At most *limit*, and 8 MiB of them. The time grows with the engines, their peers and the square of the kinds of
    engines; of so many kinds that their comparisons take seconds, some pairs are not looked at, and are left out.
    """
    shared = shared_ids((engine.key, engine.role, engine.facts) for engine in engines)
    same_ids = {each.engine_id: each for each in shared}
    known, strangers = _resolve(engines)
    met: dict[tuple[int, int], list[_Known]] = {}
    for each in known:
        met.setdefault(ordered(engines, each.engine, each.other), []).append(each)
    for (decode, _), sides in met.items():
        # What the decode side says of its peer comes first.
        sides.sort(key=lambda each: (each.engine != decode, not each.peer.status.connected))
    every = count_pairs(engines) + len(strangers)
    every += sum(not may_pair(engines[one], engines[other]) for one, other in met)
    rows = heapq.nsmallest(limit, _rows(engines, met, strangers, limit))
    pairs = _built(engines, met, rows, same_ids)
    return admin.ListPairsResponse(pairs=pairs, engines=engines, left_out=every - len(pairs))


def _rows(
    engines: Sequence[admin.PairEngine],
    met: Mapping[tuple[int, int], Sequence[_Known]],
    strangers: Iterable[tuple[int, admin.PairPeer]],
    limit: int,
) -> Iterator[_FoundPair]:
    """Yield the pairs, with those of known peers first; of pairs that only may become some, the worst *limit*."""
    order = itertools.count()
    names = [f"{engine.key.server}/{engine.key.engine}" for engine in engines]
    comparisons = Comparisons(engines)
    for (one, other), sides in met.items():
        badness = comparisons.badness(one, other, connected=_connected(sides))
        if badness is not None:
            address = sides[0].peer.status.peer.address
            named = not slowness(_speed(sides)), names[one], names[other], address
            yield _FoundPair((*badness, *named), next(order), one, other)
    worst = (each for each in worst_pairs(engines, names, comparisons) if each[1:] not in met)
    for badness, one, other in itertools.islice(worst, limit):
        yield _FoundPair((*badness, True, names[one], names[other], ""), next(order), one, other)
    for index, peer in strangers:
        slow = bool(peer.speeds) and bool(slowness(peer.speeds[0]))
        # "/": of an engine without a name.
        named = not slow, names[index], "/", peer.status.peer.address
        yield _FoundPair((-_compatible(peer.status), 0, *named), next(order), index, -1, peer)


def _built(
    engines: Sequence[admin.PairEngine],
    met: Mapping[tuple[int, int], Sequence[_Known]],
    rows: Iterable[_FoundPair],
    same_ids: Mapping[str, SharedId],
) -> list[admin.Pair]:
    """Return the pairs of *rows*, as many as have room; *same_ids*: those that several engines have."""
    room, pairs = _MAX_BYTES, []
    for row in rows:
        if row.peer is not None:
            pair = _stranger(engines[row.decode], row.peer)
            _tell_shared(pair, same_ids.get(row.peer.status.peer.engine_id))
        else:
            place = row.decode, row.prefill
            pair = _pair(engines[row.decode], engines[row.prefill], met.get(place, ()))
            _tell_shared(pair, same_ids.get(engines[row.prefill].facts.kv_engine_id))
        room -= pair.ByteSize()
        if room < 0:
            break
        pairs.append(pair)
    return pairs


def _tell_shared(pair: admin.Pair, shared: SharedId | None) -> None:
    """Tell of a pair whose other side has an id that others have, too, and of addresses that requests name for it."""
    reasons = []
    if shared is not None:
        pair.same_id.extend(shared.keys)
        names = " and ".join(f"{key.server}/{key.engine}" for key in shared.keys[:_NAMED])
        if pair.HasField("peer_key"):
            reasons.append(f"one connector engine id: {names}")
        else:
            reasons.append(f"not known which of {names}: they have one connector engine id")
    for other in pair.other_addresses:
        whose = "another engine's" if other.owner == ADDRESS_OWNER_OTHER else "not known whose"
        reasons.append(f"requests name {other.address} ({whose}) for its id, too")
    pair.reason = "; ".join([*reasons, *filter(None, (pair.reason,))])


def _connected(met: Iterable[_Known]) -> bool:
    return any(each.peer.status.connected for each in met)


def _speed(met: Iterable[_Known]) -> admin.PairSpeed:
    """Return the first speed that is told of a pair; an empty one without any."""
    return next((speed for each in met for speed in each.peer.speeds), admin.PairSpeed())


def _resolve(engines: Sequence[admin.PairEngine]) -> tuple[list[_Known], list[tuple[int, admin.PairPeer]]]:
    """Return the peers that are engines known here, and those that are not.

    An engine id counts before an address, of which ``localhost`` is in many pods. Of several engines with one id, the address
    tells which it is, if it is one engine's alone; else it is not known, and the peer is none of them.
    """
    by_id: dict[str, set[int]] = {}
    by_address: dict[str, set[int]] = {}
    for index, engine in enumerate(engines):
        by_id.setdefault(engine.facts.kv_engine_id, set()).add(index)
        by_address.setdefault(engine.facts.side_channel, set()).add(index)
    by_id.pop("", None)
    by_address.pop("", None)
    known: list[_Known] = []
    strangers: list[tuple[int, admin.PairPeer]] = []
    for index, engine in enumerate(engines):
        for peer in engine.peers:
            there = by_address.get(peer.status.peer.address, set())
            named = by_id.get(peer.status.peer.engine_id, there)
            found = named if len(named) == 1 else named & there
            other = next(iter(found)) if len(found) == 1 else index
            if other != index:
                known.append(_Known(index, other, peer))
            else:
                strangers.append((index, peer))
    return known, strangers


def _pair(decode: admin.PairEngine, prefill: admin.PairEngine, met: Sequence[_Known]) -> admin.Pair:
    """Return a pair of two engines that are known here; *met*: as peers of each other, the decode side's word first."""
    connected = _connected(met)
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
        pair.other_addresses.extend(met[0].peer.status.other_addresses)
    if any(each.peer.speeds for each in met):
        pair.speed.CopyFrom(_speed(met))
    return pair


def _stranger(engine: admin.PairEngine, peer: admin.PairPeer) -> admin.Pair:
    """Return a pair with a peer of which only this engine tells."""
    status = peer.status
    pair = admin.Pair(
        key=engine.key,
        peer=status.peer,
        compatible=_compatible(status),
        weights=admin.PAIR_WEIGHTS_UNKNOWN,
        geometry=geometry_of(engine),
        peer_geometry=peer_geometry(status),
        revision=revision_of(engine.labels),
        transport=transport_of(engine),
        connected=status.connected,
        other_addresses=status.other_addresses,
        reason="no handshake yet",
    )
    if status.connected:
        pair.reason = "they have shaken hands"
    elif status.handshake_error == ERROR_TYPE_INCOMPATIBLE:
        factors = ", ".join(status.handshake_factors)
        pair.reason = f"the handshake failed: {factors or without_advice(status.handshake_error_text)}"
    elif status.handshake_error != ERROR_TYPE_UNSPECIFIED:
        pair.reason = f"the last handshake failed: {without_advice(status.handshake_error_text)}"
    elif peer.speeds and peer.speeds[0].channel == CHANNEL_EC:
        pair.reason = "encoder outputs move without a handshake"
    if peer.speeds:
        pair.speed.CopyFrom(peer.speeds[0])
    return pair


def _compatible(status: PeerStatus) -> admin.PairCompatibility:
    """Return whether a peer fits of which only one engine tells."""
    if status.connected:
        return admin.PAIR_COMPATIBILITY_YES
    incompatible = status.handshake_error == ERROR_TYPE_INCOMPATIBLE
    return admin.PAIR_COMPATIBILITY_NO if incompatible else admin.PAIR_COMPATIBILITY_UNKNOWN


def slowness(speed: admin.PairSpeed) -> str:
    """Return what a pair is slower than, ``usual`` or ``siblings``; empty if it is not slow, or not known to be."""
    if speed.HasField("usual_ratio") and speed.usual_ratio < SLOW_SPEED_RATIO:
        return "usual"
    if speed.HasField("siblings_ratio") and speed.siblings_ratio < SLOW_SPEED_RATIO:
        return "siblings"
    return ""
