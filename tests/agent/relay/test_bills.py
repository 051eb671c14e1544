"""The bills of many agents are one."""

from __future__ import annotations

from penstock.agent.relay.merged_answers import merge_bills
from penstock.proto.v1 import admin_pb2 as admin


def _bill(failed: int, *, oldest: int = 0) -> admin.Bill:
    costs = {"failed": failed, "tokens_lost": failed}
    key = {"engine": "0"}
    bill = admin.Bill(
        lines=[admin.BillLine(key=key, peer="a:1", costs=costs)],
        prices=[admin.BillPrice(key=key, tokens=failed)],
        total=costs,
        entries=failed,
        truncated=oldest > 0,
    )
    if oldest:
        bill.oldest.FromSeconds(oldest)
        bill.log_begins.FromSeconds(oldest + 1)
    return bill


def test_lines_keep_their_engine_and_the_total_is_theirs() -> None:
    """Engines by their agent's name, the most expensive first; what is cut anywhere is cut."""
    parts = [("a", _bill(3)), ("b", _bill(4, oldest=5)), ("c", _bill(1, oldest=9))]
    found = merge_bills(parts, admin.GetBillRequest())
    assert [(line.key.server, line.costs.failed) for line in found.lines] == [("b", 4), ("a", 3), ("c", 1)]
    assert [price.key.server for price in found.prices] == ["a", "b", "c"]
    assert (found.total.failed, found.entries, found.truncated, found.oldest.seconds) == (8, 8, True, 9)
    assert found.log_begins.seconds == 10


def test_a_line_of_several_engines_stays_without_one() -> None:
    """It names no agent either."""
    bill = admin.Bill(lines=[admin.BillLine(summed=2, costs={"failed": 1})])
    (line,) = merge_bills([("a", bill)], admin.GetBillRequest()).lines
    assert (line.HasField("key"), line.summed) == (False, 2)
