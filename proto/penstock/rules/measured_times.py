"""How long computing takes in this engine, and loading from each peer, by what was measured lately.

What a reflex does is a mistake if the one is estimated too low or the other too high, so each is estimated from its dear side.
Times are nanoseconds of one clock, given by the caller. Each object belongs to one thread, and is bounded.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from penstock.proto.names import NANOS

MIN_SAMPLES: Final = 5
"""With fewer nothing is known: one may have waited for a compilation."""

COMPUTED_NS: Final = 60 * 60 * NANOS
"""What was measured of computing holds for so long: a server that loads its prompts computes few."""

LOADED_NS: Final = 60 * NANOS
"""What was measured of a peer holds for so long: then it is tried again."""

_MOST_COMPUTED: Final = 64
_MOST_LOADED: Final = 32
_MOST_PEERS: Final = 1024
# A step takes its time for few tokens as for many: what computed fewer than this part says nothing of more.
_COMPARABLE: Final = 4


class _Sample(NamedTuple):
    at_ns: int
    tokens: int
    took_ns: int


def tells_compute_time(computed: int, prompt: int) -> bool:
    """Return whether a request that computed so many tokens of its *prompt* tells what computing takes: half of it or more."""
    return computed > 0 and 2 * computed >= prompt


class ComputeTimes:
    """What computing prompt tokens took: prefill, and the wait for room where what was lost is computed again."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_MOST_COMPUTED)

    def add(self, tokens: int, took_ns: int, now: int) -> None:
        """Record that *tokens* of a request were computed."""
        if tokens > 0 and took_ns > 0:
            self._samples.append(_Sample(now, tokens, took_ns))

    def estimate(self, tokens: int, now: int) -> int | None:
        """Return what three of four such requests did not exceed, for *tokens*; None where too few were measured lately."""
        found = sorted(
            each.took_ns * max(tokens, each.tokens) // each.tokens
            for each in self._samples
            if now - each.at_ns <= COMPUTED_NS and each.tokens * _COMPARABLE >= tokens
        )
        return found[3 * len(found) // 4] if len(found) >= MIN_SAMPLES else None


class LoadTimes:
    """What loads from each peer took, from the first wait to the last byte."""

    __slots__ = ("_peers",)

    def __init__(self) -> None:
        self._peers: OrderedDict[str, deque[_Sample]] = OrderedDict()  # least recently loaded from first

    def add(self, peer: str, tokens: int, took_ns: int, now: int) -> None:
        """Record that a load of *tokens* from *peer* took so long, or was given up after it."""
        if tokens <= 0 or took_ns < 0:
            return
        if peer not in self._peers and len(self._peers) >= _MOST_PEERS:
            self._peers.popitem(last=False)
        self._peers.setdefault(peer, deque(maxlen=_MOST_LOADED)).append(_Sample(now, tokens, took_ns))
        self._peers.move_to_end(peer)

    def forget(self, peer: str) -> None:
        """Forget a peer."""
        self._peers.pop(peer, None)

    def estimate(self, peer: str, tokens: int, now: int) -> int | None:
        """Return what three of four loads of *tokens* from *peer* exceeded, and the newest; None where too few were made lately.

        A peer whose newest load was fast is well again.
        """
        found = [
            each.took_ns * min(tokens, each.tokens) // each.tokens
            for each in self._peers.get(peer, ())
            if now - each.at_ns <= LOADED_NS
        ]
        return min(sorted(found)[len(found) // 4], found[-1]) if len(found) >= MIN_SAMPLES else None
