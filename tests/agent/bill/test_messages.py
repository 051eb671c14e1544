"""A bill as messages: sums, groups, the order of lines and their number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.bill import (
    MAX_LINES,
    Costs,
    Price,
    bounded_lines,
    costs_message,
    group_lines,
    in_order,
    price_message,
    sum_costs,
)
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import CHANNEL_EC, CHANNEL_KV

_amounts = st.integers(0, 10**12)


@st.composite
def _lines(draw: st.DrawFn) -> admin.BillLine:
    price = draw(st.sampled_from([Price(), Price(5, 500, 50_000)]))
    costs = Costs(
        recomputed=draw(_amounts),
        tokens_recomputed=draw(_amounts),
        tokens_unloaded=draw(_amounts),
        waited_ns=draw(_amounts),
        waited_in_vain_ns=draw(_amounts),
    )
    return admin.BillLine(
        key={"engine": draw(st.sampled_from("01"))},
        peer=draw(st.sampled_from(["a:1", "b:1"])),
        channel=draw(st.sampled_from([CHANNEL_KV, CHANNEL_EC])),
        policies=draw(st.sampled_from([[], ["p"], ["p", "q"]])),
        rehearsal=draw(st.booleans()),
        costs=costs_message(costs, price),
    )


def _sum(lines: list[admin.BillLine]) -> admin.BillCosts:
    return sum_costs(line.costs for line in lines)


@given(st.lists(_lines(), max_size=20), st.sampled_from(["peer", "policy", "engine"]))
def test_groups_sum_to_the_same_total(lines: list[admin.BillLine], by: str) -> None:
    """However lines are grouped; a group is one of its kind, and drills stand apart."""
    found = group_lines(lines, by)
    assert _sum(found) == _sum(lines)
    names = [(line.peer, tuple(line.policies), line.key.engine, line.rehearsal) for line in found]
    assert len(set(names)) == len(names)


def test_a_token_has_its_engines_price_or_none() -> None:
    """What is not measured is not guessed."""
    costs = Costs(tokens_recomputed=30, tokens_unloaded=10)
    known = costs_message(costs, Price(5, 500, 2_500))
    assert (known.prefill.ToNanoseconds(), known.tokens_unpriced) == (200, 0)
    unknown = costs_message(costs, Price())
    assert (unknown.prefill.ToNanoseconds(), unknown.tokens_unpriced) == (0, 40)
    both = sum_costs([known, unknown])
    assert (both.prefill.ToNanoseconds(), both.tokens_unpriced) == (200, 40)
    assert price_message(Price(2, 20, 100)).requests == 2


def test_what_is_too_much_is_summed() -> None:
    """The most expensive lines stay, and the total with them; the sum of a sum says how many lines it stands for."""
    lines = [
        admin.BillLine(peer=f"{number}:1", channel=CHANNEL_KV, costs={"recomputed": 1, "tokens_lost": number})
        for number in range(MAX_LINES + 10)
    ]
    found = bounded_lines(lines)
    assert (len(found), found[0].peer, found[-1].summed) == (MAX_LINES, f"{MAX_LINES + 9}:1", 11)
    assert _sum(found) == _sum(lines)
    again = bounded_lines([*found, *lines])
    assert (len(again), _sum(again).recomputed) == (MAX_LINES, 2 * len(lines))
    assert again[-1].summed == len(found) + len(lines) - (MAX_LINES - 1) + 10
    # It is no peer, no policy and no engine of its own.
    assert [line.summed for line in group_lines(found, "policy") if line.summed] == [11]


def test_seconds_come_before_tokens() -> None:
    """What cost time is the most expensive."""
    slow = admin.BillLine(peer="slow", costs={"tokens_lost": 1})
    slow.costs.waited_in_vain.FromSeconds(1)
    many = admin.BillLine(peer="many", costs={"tokens_lost": 10_000})
    assert [line.peer for line in in_order([many, slow])] == ["slow", "many"]


def test_no_sum_is_too_large() -> None:
    """Amounts end where their fields do."""
    most = admin.BillCosts(failed=2**64 - 1)
    most.waited.FromNanoseconds(2**64 - 1)
    found = sum_costs([most, most])
    assert (found.failed, found.waited.ToNanoseconds()) == (2**64 - 1, 2**64 - 1)
    assert costs_message(Costs(tokens_lost=2**70), Price()).tokens_lost == 2**64 - 1
