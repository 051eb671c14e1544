"""How long a peer takes, and what is wrong with it now, as text. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.ctl.render import text
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

COLOURS = {
    admin.PEER_CONDITION_HANGING: "red",
    admin.PEER_CONDITION_FAILING: "red",
    admin.PEER_CONDITION_SLOW: "yellow",
    admin.PEER_CONDITION_QUARANTINED: "yellow",
}


def window(item: admin.DurationWindow) -> str:
    """Return the quantiles of a window, p50/p99: ``54ms/1.2s``; ``-`` without a count."""
    if not item.count:
        return text.NONE
    return f"{text.span_of_time(item.p50_seconds)}/{text.span_of_time(item.p99_seconds)}"


def condition(item: admin.PeerSummary) -> str:
    """Return what is wrong with a peer now; ``-`` from an agent that does not say."""
    return text.word(admin.PeerCondition, item.condition) if item.condition else text.NONE


def styled_condition(item: admin.PeerSummary) -> str:
    """Return the same, coloured."""
    word = condition(item)
    return text.style(word, COLOURS[item.condition]) if item.condition in COLOURS else word


def duration(item: Duration) -> str:
    """Return a duration; ``-`` for none."""
    nano = item.ToNanoseconds()
    return text.span_of_time(nano / 1e9) if nano > 0 else text.NONE
