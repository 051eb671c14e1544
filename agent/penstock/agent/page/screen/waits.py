"""Who waits now. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.page.screen.model import WaitRow, Waits
from penstock.agent.page.wire import about, hidden_name, milliseconds, plain
from penstock.agent.views import text
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from penstock.agent.page.screen.model import ScreenAnswers
    from penstock.proto.v1 import admin_pb2 as admin

MOST_ROWS = 30


def waits(answers: ScreenAnswers) -> Waits:
    """Return the requests that have waited longest, and how many there are."""
    if answers.waits is None:
        return Waits((), 0, 0, answers.trouble or "the agent has not answered yet")
    found = answers.waits
    rows = tuple(_row(item) for item in found.requests[:MOST_ROWS])
    unnamed = found.unnamed_deferred
    total = max(len(found.requests) + unnamed, _counted(answers))
    sentence = (
        ""
        if rows
        else "no request waits for a transfer"
        if not total
        else f"{total} wait whose ids are not in the log"
    )
    return Waits(rows, total, unnamed, sentence)


def _counted(answers: ScreenAnswers) -> int:
    """Return what the engines count as deferred; the list of requests has a limit."""
    if answers.engines is None:
        return 0
    return sum(entry.count for item in answers.engines.engines for entry in item.deferred)


def _row(item: admin.RequestSummary) -> WaitRow:
    reason = text.word(common.DeferralReason, item.deferred)
    peer = f" from {item.peer.address}" if item.peer.address else ""
    return WaitRow(
        request=plain(item.request_id),
        engine=plain(text.engine(item.key)),
        peer=plain(item.peer.address),
        reason=reason,
        since=milliseconds(item.since.ToNanoseconds()),
        sentence=plain(text.folded(f"waits for {reason}{peer}")),
        command=about("explain", name=item.request_id),
        request_id=hidden_name(item.request_id),
    )
