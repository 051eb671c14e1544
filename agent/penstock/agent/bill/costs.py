"""The amounts of a bill, what each is charged to, and the price of a token; and a bill as messages whose amounts add up."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.duration_pb2 import Duration
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
