"""Decodes a Push: its policies (:mod:`penstock.rules.decode`) and how long each holds, and its orders.

Each order is accepted or refused alone, within bounds of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from penstock.instrumentation.orders import MAX_ACTIVE, NO_ORDERS, Drill, Drills, Orders
from penstock.instrumentation.policy.active_policy import ScheduleEntry, fits_always
from penstock.rules import BreakerState, QuarantineOrder
from penstock.rules.decode import (
    RefusedError,
    decode_policy,
    has_unknown,
    in_seconds,
    unknown_fields,
    unknown_in_policy,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from penstock.proto.v1 import policy_pb2
    from penstock.proto.v1.policy_pb2 import Push, ScheduledPolicy

ORDERS_MAX: Final = 1024
NAME_MAX: Final = 256
REFUSALS_MAX: Final = 512
"""Refused orders that are reported; an agent never sends as many as this."""

M = TypeVar("M", "policy_pb2.QuarantineOrder", "policy_pb2.FaultDrill")
T = TypeVar("T")
ENTRIES_MAX: Final = 64


def decode_orders(
    push: Push, *, faults_allowed: bool, now_ns: int, unfit: Callable[[Drill], str] = fits_always
) -> tuple[Orders, dict[str, str]]:
    """Return the accepted orders of *push*, and by id why the others are refused.

    Args:
        push: as it was received.
        faults_allowed: whether the engine was started with ``PENSTOCK_ALLOW_FAULTS=1``.
        now_ns: monotonic nanoseconds of its receipt.
        unfit: returns why this engine cannot rehearse a drill; empty if it can.

    """
    refused: dict[str, str] = {}
    if not (push.quarantines or push.drills):
        return NO_ORDERS, refused
    quarantines = _each(push.quarantines, _order, ORDERS_MAX, "quarantine orders", refused)
    allowed = Drills(allowed=faults_allowed)

    def drill_of(message: policy_pb2.FaultDrill) -> Drill:
        drill = _drill(message)
        allowed.replace([drill])
        if error := unfit(drill):
            raise ValueError(error)
        return drill

    drills = _each(push.drills, drill_of, MAX_ACTIVE, "fault drills", refused)
    return Orders(quarantines, drills, now_ns) if quarantines or drills else NO_ORDERS, refused


def _each(
    messages: Iterable[M], read: Callable[[M], T], most: int, what: str, refusals: dict[str, str]
) -> tuple[T, ...]:
    found: list[T] = []
    for message in messages:
        error = _wrong(message) if len(found) < most else f"{most} {what} are in force already; end one first"
        if not error:
            try:
                found.append(read(message))
            except ValueError as refused:
                error = str(refused)
        if error and len(refusals) < REFUSALS_MAX:
            refusals[message.id[:NAME_MAX]] = error
    return tuple(found)


def _wrong(message: policy_pb2.QuarantineOrder | policy_pb2.FaultDrill) -> str:
    """Return why an order of any kind is refused; empty if it is not."""
    if not 0 < len(message.id) <= NAME_MAX or len(message.peer) > NAME_MAX:
        return (
            f"it has {len(message.id)} characters of id and {len(message.peer)} of peer; use 1 to {NAME_MAX}"
        )
    path = next(unknown_fields(message), "")
    return f"field {path} is not known to this engine; upgrade it or leave the field out" if path else ""


def _order(order: policy_pb2.QuarantineOrder) -> QuarantineOrder:
    if not order.peer:
        raise ValueError("it names no peer; use host:port")
    state = int(order.state)
    if state not in (BreakerState.OPEN, BreakerState.CLOSED):
        raise ValueError(f"its state for {order.peer} is {state}; use open or closed")
    ttl = order.valid_for.ToNanoseconds() if order.HasField("valid_for") else None
    return QuarantineOrder(order.id, order.peer, state == BreakerState.OPEN, ttl)


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


def decode_schedule(push: Push, fields: Collection[str]) -> list[ScheduleEntry]:
    """Return the schedule of *push*, in order.

    Args:
        push: as it was received.
        fields: what this engine acts upon, as dotted names of ``PolicyBody``.

    Raises:
        RefusedError: a value is out of bounds, or a field or value is not supported by this engine.

    """
    # The search for unknown fields costs more than all the rest.
    for path in unknown_in_policy(push) if has_unknown(push) else ():
        raise RefusedError(
            path, f"field {path} is not known to this engine; upgrade the engine or remove the field"
        )
    if len(push.schedule) > ENTRIES_MAX:
        raise RefusedError(
            "", f"the schedule has {len(push.schedule)} entries; keep it at {ENTRIES_MAX} or fewer"
        )
    last = len(push.schedule) - 1
    return [_entry(entry, fields, is_last=index == last) for index, entry in enumerate(push.schedule)]


def _entry(entry: ScheduledPolicy, fields: Collection[str], *, is_last: bool) -> ScheduleEntry:
    timed = entry.HasField("valid_for")
    if timed == is_last:
        raise RefusedError(
            "expiresAt", "the schedule must end with one entry that holds for good, and only that"
        )
    valid_for = in_seconds(entry.valid_for) if timed else None
    if valid_for is not None and valid_for <= 0:
        raise RefusedError(
            "expiresAt", f"an entry of the schedule holds for {valid_for:g} s; it must be more than 0"
        )
    return ScheduleEntry(decode_policy(entry, fields), valid_for)
