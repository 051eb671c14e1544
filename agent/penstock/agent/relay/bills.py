"""Makes one bill of those of many agents. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.bill import bounded_lines, sum_costs
from penstock.agent.relay.engine_names import qualify, qualify_all
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_UINT32, _MAX_UINT64 = (1 << 32) - 1, (1 << 64) - 1


def merge_bills(answers: Sequence[tuple[str, Any]], _: admin.GetBillRequest) -> admin.Bill:
    """Return the lines of all agents, the most expensive first; a line that sums several engines stays without one."""
    merged = admin.Bill()
    lines: list[admin.BillLine] = []
    for name, answer in answers:
        for line in answer.lines:
            if line.HasField("key"):
                qualify(line.key, name)
        qualify_all((price.key for price in answer.prices), name)
        lines += answer.lines
        merged.prices.extend(answer.prices)
        merged.entries = min(merged.entries + answer.entries, _MAX_UINT64)
        merged.unreadable_batches = min(merged.unreadable_batches + answer.unreadable_batches, _MAX_UINT32)
        merged.truncated |= answer.truncated
        # What is whole since then is whole at every agent.
        for mine, theirs in ((merged.oldest, answer.oldest), (merged.log_begins, answer.log_begins)):
            if theirs.ToNanoseconds() > mine.ToNanoseconds():
                mine.CopyFrom(theirs)
    merged.lines.extend(bounded_lines(lines))
    merged.total.CopyFrom(sum_costs(line.costs for line in merged.lines))
    return merged
