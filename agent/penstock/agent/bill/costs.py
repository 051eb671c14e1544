"""The amounts of a bill, what each is charged to, and the price of a token."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, NamedTuple

SAMPLE_REQUESTS: Final = 5
"""Requests that a price is measured on at least: one alone may have waited for a compilation, or shared its steps."""

SAMPLE_TOKENS: Final = 100
"""Prompt tokens that these computed at least, on average: a step takes its time for few tokens as for many."""


class Charge(NamedTuple):
    """What a cost is charged to, within one engine; numbers of the wire's enums.

    Attributes:
        peer: ``host:port``, or ``unknown``.
        policy_hash: of the merged policy that decided; empty if none did.
        decided_by: 0 if nothing had to be decided.
        rehearsal: a fault drill caused it.

    """

    channel: int
    peer: str
    policy_hash: str = ""
    decided_by: int = 0
    rehearsal: bool = False


@dataclass(slots=True)
class Costs:
    """Amounts; all are sums, so that the bills of two times add up to that of both.

    Attributes:
        recomputed: failed loads whose requests went on with recomputation.
        failed: failed loads whose requests failed.
        tokens_recomputed: prompt tokens that were computed again after a failed load.
        items_recomputed: encoder outputs likewise.
        tokens_lost: prompt tokens whose state was lost with requests that failed.
        tokens_unloaded: prompt tokens that another engine had computed and that were computed again although no load
            was begun.
        recompute_ns: time at the gate ``recompute`` before first tokens: the wait for room and the prefill.
        waits: waits for remote state that got it.
        waited_ns: their time.
        waits_in_vain: waits that ended without it.
        waited_in_vain_ns: their time.

    """

    recomputed: int = 0
    failed: int = 0
    tokens_recomputed: int = 0
    items_recomputed: int = 0
    tokens_lost: int = 0
    tokens_unloaded: int = 0
    recompute_ns: int = 0
    waits: int = 0
    waited_ns: int = 0
    waits_in_vain: int = 0
    waited_in_vain_ns: int = 0

    @property
    def tokens(self) -> int:
        """Prompt tokens that this engine computed although another one had."""
        return self.tokens_recomputed + self.tokens_unloaded

    def add(self, other: Costs) -> None:
        """Add *other* to these."""
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_NAMES = tuple(each.name for each in fields(Costs))


@dataclass(slots=True)
class Price:
    """How long an engine takes for a prompt token.

    It is measured on requests that computed half of their prompt or more, lost no state and were not preempted.

    Attributes:
        requests: that it was measured on.
        tokens: prompt tokens that they computed.
        prefill_ns: their time at the gate ``own_prefill``.

    """

    requests: int = 0
    tokens: int = 0
    prefill_ns: int = 0

    @property
    def is_known(self) -> bool:
        """Whether the sample is large enough to tell what a token takes."""
        return self.requests >= SAMPLE_REQUESTS and self.tokens >= SAMPLE_TOKENS * self.requests

    def of(self, tokens: int) -> int | None:
        """Return the prefill time of *tokens*, nanoseconds; None if the price is not known."""
        return tokens * self.prefill_ns // self.tokens if self.is_known else None
