"""A bill as messages: amounts that add up, lines in order, and as many as an answer may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.duration_pb2 import Duration
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.agent.bill.costs import Costs, Price

MAX_LINES: Final = 1_000
_MAX_UINT64, _MAX_UINT32 = (1 << 64) - 1, (1 << 32) - 1
_FIELDS: Final = tuple(field.name for field in admin.BillCosts.DESCRIPTOR.fields)
_TIMES: Final = frozenset(name for name in _FIELDS if isinstance(getattr(admin.BillCosts(), name), Duration))


def costs_message(costs: Costs, price: Price) -> admin.BillCosts:
    """Return *costs* with the prefill time of their tokens at *price*."""
    prefill = price.of(costs.tokens)
    amounts = {
        "recompute": costs.recompute_ns,
        "waited": costs.waited_ns,
        "waited_in_vain": costs.waited_in_vain_ns,
        "prefill": prefill or 0,
        "tokens_unpriced": costs.tokens if prefill is None else 0,
    }
    return _message(lambda name: amounts[name] if name in amounts else getattr(costs, name))


def price_message(price: Price) -> admin.BillPrice:
    """Return *price* without the key of its engine."""
    message = admin.BillPrice(requests=price.requests, tokens=min(price.tokens, _MAX_UINT64))
    message.prefill.FromNanoseconds(min(price.prefill_ns, _MAX_UINT64))
    return message


def sum_costs(items: Iterable[admin.BillCosts]) -> admin.BillCosts:
    """Return the sum; each amount ends where its field does."""
    sums = dict.fromkeys(_FIELDS, 0)
    for item in items:
        for name in _FIELDS:
            value = getattr(item, name)
            sums[name] += value.ToNanoseconds() if name in _TIMES else value
    return _message(sums.__getitem__)


def group_lines(lines: Iterable[admin.BillLine], by: str) -> list[admin.BillLine]:
    """Return the sums of *lines* by *by*, the most expensive first.

    Args:
        lines: of a bill.
        by: ``peer``, ``policy`` or ``engine``.

    """
    groups: dict[tuple[object, ...], list[admin.BillLine]] = {}
    for line in lines:
        keys = {
            "peer": line.peer,
            "policy": tuple(line.policies),
            "engine": (line.key.server, line.key.engine),
        }
        # A line that sums what was too much belongs to no group.
        groups.setdefault((keys[by], line.rehearsal, line.summed > 0), []).append(line)
    return in_order([_grouped(group, by) for group in groups.values()])


def in_order(lines: Iterable[admin.BillLine]) -> list[admin.BillLine]:
    """Return *lines*, the most expensive first."""
    return sorted(lines, key=_rank)


def bounded_lines(lines: Iterable[admin.BillLine]) -> list[admin.BillLine]:
    """Return at most ``MAX_LINES`` lines, the most expensive first; the last one sums what is above that."""
    found = in_order(lines)
    if len(found) <= MAX_LINES:
        return found
    rest = found[MAX_LINES - 1 :]
    number = sum(line.summed or 1 for line in rest)
    last = admin.BillLine(costs=sum_costs(line.costs for line in rest), summed=min(number, _MAX_UINT32))
    return [*found[: MAX_LINES - 1], last]


def _grouped(lines: list[admin.BillLine], by: str) -> admin.BillLine:
    first = lines[0]
    summed = sum(line.summed for line in lines)
    found = admin.BillLine(
        rehearsal=first.rehearsal,
        costs=sum_costs(line.costs for line in lines),
        summed=min(summed, _MAX_UINT32),
    )
    if by == "engine" and first.HasField("key"):
        found.key.CopyFrom(first.key)
    elif by == "peer":
        found.peer = first.peer
    elif by == "policy":
        found.policies.extend(first.policies)
    return found


def _message(amount: Callable[[str], int]) -> admin.BillCosts:
    message = admin.BillCosts()
    for name in _FIELDS:
        number = min(amount(name), _MAX_UINT64)
        if name in _TIMES:
            getattr(message, name).FromNanoseconds(number)
        else:
            setattr(message, name, number)
    return message


def _rank(line: admin.BillLine) -> tuple[object, ...]:
    costs = line.costs
    computed = max(costs.prefill.ToNanoseconds(), costs.recompute.ToNanoseconds())
    return (
        -(computed + costs.waited_in_vain.ToNanoseconds()),
        -(costs.tokens_recomputed + costs.tokens_unloaded + costs.tokens_lost),
        -costs.failed,
        -costs.waited.ToNanoseconds(),
        (line.key.server, line.key.engine, line.channel, line.peer, tuple(line.policies), line.rehearsal),
    )
