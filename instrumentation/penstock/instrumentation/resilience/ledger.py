"""The first decision on an attempt sticks.

vLLM reports one failed load more than once: a step earlier with tensor parallelism, again after the request has
finished, and at every poll while the release of a handle fails.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.resilience.decisions import Decision

_CAPACITY: Final = 8192


class Settled(NamedTuple):
    """The decision that holds; *first* only the first time, when its outcome is to be reported."""

    decision: Decision
    first: bool


class DecisionLog:
    """Decisions by request and attempt, those asked for longest ago forgotten first.

    One per channel; belongs to one thread. *forgotten* counts what the bound cost.
    """

    __slots__ = ("_capacity", "_decisions", "forgotten")

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._decisions: OrderedDict[tuple[str, int], Decision] = OrderedDict()
        self.forgotten = 0

    def settle(self, request_id: str, attempt: int, decide: Callable[[], Decision]) -> Settled:
        """Return the decision on the *attempt*-th load of a request; *decide* is called if there is none yet."""
        key = (request_id, attempt)
        known = self._decisions.get(key)
        if known is not None:
            self._decisions.move_to_end(key)
            return Settled(known, first=False)
        decision = self._decisions[key] = decide()
        if len(self._decisions) > self._capacity:
            self._decisions.popitem(last=False)
            self.forgotten += 1
        return Settled(decision, first=True)
