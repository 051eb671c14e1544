"""How even the load of experts is over the ranks, as a rebalance tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_ERROR

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import EplbRebalance


def balancedness(rebalance: EplbRebalance, when: str) -> float | None:
    """Return the mean load ÷ the maximum, *when* is ``before`` or ``after``; None if there is none.

    Without a token it is 0 / 0, and what is not in 0 to 1 is no ratio. After a rebalance that failed there is none:
    engines compute it from the new map, which has not taken effect, and older ones send it all the same.
    """
    field = f"balancedness_{when}"
    ratio: float = getattr(rebalance, field)
    failed = when == "after" and rebalance.result == TRANSFER_RESULT_ERROR
    return ratio if rebalance.HasField(field) and 0 <= ratio <= 1 and not failed else None
