"""Transfers of one peer that are slower than in its own hour before, or than those of the other peers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.agent.diagnosis.facts import Confidence, Evidence, FoundCause, words
from penstock.agent.pairs import slowness

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.agent.diagnosis.facts import Attribution, Facts
    from penstock.agent.model import EngineKey
    from penstock.proto.v1 import admin_pb2 as admin

# What a pair counts for that moves fewer bytes a second than it could, seconds.
_PAIR_SECONDS = 5.0
_MB = 1e6
# Small transfers take as long as the question for them: their bytes a second say little.
_SMALL = "below"
_ALTERNATIVES = (
    "the transport fell back to a slower one: TCP instead of RDMA or shared memory",
    "a network card or link that several peers share",
)
# A duration ends when the engine looks at its transfers, once in each of its steps.
_LOOKS = "its engine looks less often than before, at the end of longer steps, and the transfers are as fast as ever"
# Seconds of the longer window.
_QUARTER = 900.0


def transfer_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield peers whose transfers are slow, but for those that have a cause already."""
    by_engine: dict[EngineKey, list[admin.PeerSummary]] = defaultdict(list)
    for each in facts.peers:
        if not each.retired and _present(facts, each).count >= limits.MEDIAN_COUNT:
            by_engine[words.key_of(each.key)].append(each)
    told = {peer for (_, peer), trouble in shares.peers.items() if trouble.failures or trouble.slow}
    for key, peers in sorted(by_engine.items()):
        for peer in sorted(peers, key=lambda each: each.peer.address):
            compared = _compared(facts, peer, peers)
            if compared is not None and peer.peer.address not in told:
                told.add(peer.peer.address)
                yield _slow(facts, key, peer, compared)
    for pair in facts.pairs:
        judged = pair.speed.count >= limits.MEDIAN_COUNT and not pair.speed.size_class.startswith(_SMALL)
        than = slowness(pair.speed) if judged else ""
        if than and pair.peer.address and pair.peer.address not in told:
            yield _slow_pair(facts, pair, than)


def _observed(facts: Facts, key: EngineKey, least: str) -> Evidence:
    """Return what the durations of an engine's transfers are, and how far they can be from the truth; *least*: if it tells."""
    if least:
        return Evidence(
            f"durations are times until the engine sees the end; had each ended just after the look before: {least}"
        )
    look = facts.look_seconds.get(key, 0.0)
    often = f"which looks every {words.span(look)}" if look else "and how often it looks is not known"
    return Evidence(f"durations are times until the engine sees the end, {often}")


def _confidence(facts: Facts, key: EngineKey, least: str) -> tuple[Confidence, tuple[str, ...]]:
    """Return how sure it is that transfers are slow and not seen late, and what else it could be."""
    if least or facts.look_seconds.get(key, 0.0):
        return Confidence.LIKELY, _ALTERNATIVES
    return Confidence.POSSIBLE, (_LOOKS, *_ALTERNATIVES)


def _present(facts: Facts, peer: admin.PeerSummary) -> admin.DurationWindow:
    """Return the newest durations that the agent keeps of a peer and that are of the window; it keeps these two."""
    windows = peer.transfers
    return windows.last_15_minutes if facts.present.seconds >= _QUARTER else windows.last_minute


def _least(facts: Facts, peer: admin.PeerSummary) -> float | None:
    """Return the median of the same, seconds, had each ended just after the look before; None if the engine does not tell."""
    windows = peer.transfers_at_least
    window = windows.last_15_minutes if facts.present.seconds >= _QUARTER else windows.last_minute
    return window.p50_seconds if window.count and window.count == _present(facts, peer).count else None


def _span(facts: Facts) -> str:
    return "15m" if facts.present.seconds >= _QUARTER else "the last minute"


def _compared(
    facts: Facts, peer: admin.PeerSummary, peers: Sequence[admin.PeerSummary]
) -> tuple[str, float] | None:
    """Return what the transfers are slow against, and its median in seconds; None if they are not slow."""
    before = peer.transfers.hour_before
    least = _least(facts, peer)
    if least is None:
        late = limits.LOOK_TIMES * facts.look_seconds.get(words.key_of(peer.key), 0.0)
        least = _present(facts, peer).p50_seconds - late
    if before.count >= limits.USUAL_COUNT and _slower(least, before.p50_seconds):
        return "in the hour before", before.p50_seconds
    others = [_present(facts, each).p50_seconds for each in peers if each is not peer]
    middle = words.quantile(others, 0.5)
    if before.count < limits.USUAL_COUNT and len(others) >= limits.OTHER_PEERS and _slower(least, middle):
        return "with the other peers", middle
    return None


def _slower(now: float, usual: float) -> bool:
    return usual > 0 and limits.is_slower(now, usual)


def _slow(facts: Facts, key: EngineKey, peer: admin.PeerSummary, compared: tuple[str, float]) -> FoundCause:
    now, (against, usual) = _present(facts, peer), compared
    least = _least(facts, peer)
    shortest = "" if least is None else words.span(least)
    address, (confidence, alternatives) = peer.peer.address, _confidence(facts, key, shortest)
    loose = least is not None and limits.is_loose(least, now.p50_seconds)
    took = f"at least {shortest}" if loose else words.span(now.p50_seconds)
    return FoundCause(
        "slow_transfers",
        f"transfers of {words.peer(address)} to engine {key} take {took}, {words.span(usual)} {against}",
        (key,),
        (
            Evidence(
                f"the median of {now.count} transfers in {_span(facts)} is {words.span(now.p50_seconds)}",
                f"{words.span(usual)} {against}",
            ),
            _observed(facts, key, shortest),
            *_transport(facts, address),
        ),
        peer=address,
        requests=now.count,
        seconds=now.count * ((least if loose and least is not None else now.p50_seconds) - usual),
        confidence=confidence,
        alternatives=(*alternatives, "larger transfers than before: longer prompts"),
        commands=(f"agentctl describe peer {address}", "agentctl get peers -o wide"),
    )


def _transport(facts: Facts, address: str) -> Iterator[Evidence]:
    """Yield how the two move blocks, as far as NIXL and the environment tell."""
    for pair in facts.pairs:
        if pair.peer.address == address and pair.transport:
            yield Evidence(f"by {pair.transport}")
            return


def _slow_pair(facts: Facts, pair: admin.Pair, than: str) -> FoundCause:
    """Return the cause where transfers of one size move fewer bytes a second, whatever their mean duration."""
    key, address, speed = words.key_of(pair.key), pair.peer.address, pair.speed
    most = speed.bytes_per_second_at_most
    best = f"at most {most / _MB:.1f} MB/s" if speed.HasField("bytes_per_second_at_most") else ""
    moved = f"{speed.bytes_per_second / _MB:.1f} MB/s"
    if best and limits.is_loose(speed.bytes_per_second, most):
        moved = best
    confidence, alternatives = _confidence(facts, key, best)
    if than == "usual":
        share, against = speed.usual_ratio, "what is usual for transfers of this size"
    else:
        share, against = speed.siblings_ratio, "the median of this engine's other peers"
    return FoundCause(
        "slow_transfers",
        f"transfers of {words.peer(address)} to engine {key} move {moved}, {share:.0%} of {against}",
        (key,),
        (
            Evidence(
                f"{words.count(speed.count, 'transfer')} of {speed.size_class} on rank {speed.rank}",
                f"{speed.usual_bytes_per_second / _MB:.1f} MB/s" if speed.usual_count else "",
            ),
            _observed(facts, key, best),
            *([Evidence(f"by {pair.transport}")] if pair.transport else []),
        ),
        peer=address,
        requests=speed.count,
        other_harm=_PAIR_SECONDS,
        confidence=confidence,
        alternatives=(*alternatives, "many more transfers at once than before slow each of them"),
        commands=("agentctl get pairs -o wide", f"agentctl describe peer {address}"),
    )
