"""Checks of the pairs of engines: how many are known to be compatible, and which mix roll-outs. Pure.

Pairs that are incompatible, slow or of other weights are causes of the diagnosis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.views import text
from penstock.agent.views.checks.findings import NOTE, OK, Finding
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SUBJECT = "pairs"


def check_pairs(pairs: Sequence[admin.Pair]) -> Iterator[Finding]:
    """Yield one finding for those that are compatible, and one for those that mix roll-outs."""
    good = sum(pair.compatible == admin.PAIR_COMPATIBILITY_YES for pair in pairs)
    if good:
        yield Finding(OK, _SUBJECT, f"{good} of {text.count(len(pairs), 'pair')} known to be compatible")
    mixed = [pair for pair in pairs if any(each.fact == "revision" for each in pair.differences)]
    if mixed:
        words = sorted({word for pair in mixed for word in (pair.revision, pair.peer_revision)})
        yield Finding(
            NOTE,
            _SUBJECT,
            f"{text.count(len(mixed), 'pair')} of {len(pairs)} mix roll-outs: {', '.join(words)}",
            "a roll-out under way needs no action; one that has stopped is to be finished or undone",
        )
