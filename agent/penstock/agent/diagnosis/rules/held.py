"""KV blocks that loads hold although their request has ended or was given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.agent.diagnosis.facts import Confidence, Evidence, FoundCause, sane, words
from penstock.proto.names import NANOS
from penstock.proto.v1.snapshot_pb2 import (
    BLOCK_HOLDER_ABORTED,
    BLOCK_HOLDER_PINNED,
    BLOCK_HOLDER_SAVE,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts

# What a request whose blocks are held counts for, and all blocks of the cache, seconds.
_REQUEST_SECONDS, _CACHE_SECONDS = 2.0, 600.0
_HOLDERS = {
    BLOCK_HOLDER_ABORTED: (
        "aborted_loads_hold_blocks",
        "loads of requests that have ended",
        "the peer never completes or ends the transfer: see whether it is alive",
    ),
    BLOCK_HOLDER_PINNED: (
        "pinned_blocks",
        "loads that were given up",
        "the peer is stopped and may still write: the blocks are safe only when it answers or the engine restarts",
    ),
    BLOCK_HOLDER_SAVE: (
        "saves_hold_blocks",
        "saves of requests that have ended",
        "the store is slow or full",
    ),
}


def held_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield what holds blocks for longer than it takes."""
    for key, row in facts.held:
        words_of = _HOLDERS.get(row.holder)
        begun = row.oldest_start_time_unix_nano
        age = (facts.now - begun) / NANOS if begun else 0.0
        if words_of is None or not row.blocks or age < limits.HELD_SECONDS:
            continue
        kind, says, other = words_of
        total = next(
            (each.facts.num_gpu_blocks for each in facts.engines if words.key_of(each.key) == key), 0
        )
        share = row.blocks / total if total else 0.0
        peer = row.peer.address
        of_peer = f", from {words.peer(peer)}" if peer else ""
        yield FoundCause(
            kind,
            f"engine {key}: {words.count(row.blocks, 'block')} {'is' if row.blocks == 1 else 'are'} still held by "
            f"{says}{of_peer}, the oldest for {words.span(age)}",
            (key,),
            (
                Evidence(
                    f"{words.count(row.requests, 'request')}, {words.count(row.blocks, 'block')}"
                    + (f", {100 * share:.0f} % of its KV cache" if total else "")
                ),
            ),
            peer=peer,
            requests=row.requests,
            since=sane(facts, begun),
            other_harm=_REQUEST_SECONDS * row.requests + _CACHE_SECONDS * min(share, 1.0),
            confidence=Confidence.CERTAIN,
            alternatives=(
                other,
                "a transfer that is slow and not stuck: agentctl get peers has the oldest in flight",
            ),
            commands=(
                *((f"agentctl describe peer {peer}",) if peer else ()),
                f"agentctl describe engine {key}",
            ),
        )
