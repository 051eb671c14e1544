"""How long a peer takes, and what is wrong with it now, as text. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.badness import badness
from penstock.agent.views import text
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

# From this condition on, requests fail, wait or are answered wrongly; below it, something is slow or taken care of.
_RED = badness(admin.PEER_CONDITION_FAILING)


def colour(condition: int) -> str:
    """Return the look of a ``PeerCondition``: red, yellow, or empty where nothing is wrong."""
    rank = badness(condition)
    return "" if not rank else "red" if rank >= _RED else "yellow"


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
    word, look = condition(item), colour(item.condition)
    return text.style(word, look) if look else word


def since(item: admin.PeerSummary, now: float) -> str:
    """Return for how long it has been wrong; ``-`` for not known, and where nothing is."""
    return text.ago_of(item.condition_since, now).removesuffix(" ago")


def duration(item: Duration) -> str:
    """Return a duration; ``-`` for none."""
    nano = item.ToNanoseconds()
    return text.span_of_time(nano / 1e9) if nano > 0 else text.NONE
