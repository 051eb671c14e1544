"""From a Push to the directives in it, against bounds of our own: see :mod:`policy_decode`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.instrumentation.circuit import State
from penstock.instrumentation.directives import NO_DIRECTIVES, Directives
from penstock.instrumentation.drills import Drill, DrillRefusedError, Drills
from penstock.instrumentation.policy_decode import RefusedError
from penstock.instrumentation.quarantine import Order

if TYPE_CHECKING:
    from penstock.proto.v1 import policy_pb2
    from penstock.proto.v1.policy_pb2 import Push

ORDERS_MAX: Final = 1024
NAME_MAX: Final = 256


def decode_directives(push: Push, *, faults_allowed: bool, now_ns: int) -> Directives:
    """Return the directives of *push*, received at *now_ns*.

    Args:
        push: as it was received.
        faults_allowed: whether the engine was started with ``PENSTOCK_ALLOW_FAULTS=1``.
        now_ns: monotonic nanoseconds.

    Raises:
        RefusedError: it breaks a bound, or asks for faults in an engine that does not allow them.

    """
    if len(push.quarantines) > ORDERS_MAX:
        raise RefusedError(
            "quarantines", f"{len(push.quarantines)} quarantine orders at once; use at most {ORDERS_MAX}"
        )
    orders = tuple(_order(order) for order in push.quarantines)
    rehearsals = tuple(_drill(drill) for drill in push.drills)
    try:
        Drills(allowed=faults_allowed).replace(rehearsals)
    except DrillRefusedError as refused:
        raise RefusedError("drills", str(refused)) from None
    return Directives(orders, rehearsals, now_ns) if orders or rehearsals else NO_DIRECTIVES


def _order(order: policy_pb2.QuarantineOrder) -> Order:
    if not 0 < len(order.peer) <= NAME_MAX or not 0 < len(order.id) <= NAME_MAX:
        raise RefusedError(
            "quarantines",
            f"a quarantine order has {len(order.id)} characters of id and {len(order.peer)} of peer; use 1 to {NAME_MAX}",
        )
    state = int(order.state)
    if state not in (State.OPEN, State.CLOSED):
        raise RefusedError(
            "quarantines",
            f"the quarantine order for {order.peer} has the state {state}; use open or closed",
        )
    ttl = order.valid_for.ToNanoseconds() if order.HasField("valid_for") else None
    return Order(order.id, order.peer, state == State.OPEN, ttl)


def _drill(drill: policy_pb2.FaultDrill) -> Drill:
    return Drill(
        id=drill.id,
        channel=drill.channel,
        mode=drill.mode,
        rate=drill.rate,
        valid_for_ns=drill.valid_for.ToNanoseconds(),
        peer=drill.peer,
        delay_ns=drill.delay.ToNanoseconds(),
    )
