"""Checks of the pairs of engines: incompatible, with other weights, of several roll-outs, or slow. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.ctl.diagnosis.findings import NOTE, OK, WRONG, Finding
from penstock.agent.ctl.render import pair_rows, text
from penstock.agent.pairs import slowness
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Sequence

# Findings of one kind that are shown with both names; the rest are counted.
_SHOWN = 5


def check_pairs(pairs: Sequence[admin.Pair]) -> list[Finding]:
    """Return the findings about pairs; one for all where nothing is wrong and some are known to be compatible."""
    found = [finding for kind in (_incompatible, _weights, _revisions, _slow) for finding in kind(pairs)]
    judged = sum(pair.compatible == admin.PAIR_COMPATIBILITY_YES for pair in pairs)
    if judged and not any(finding.level == WRONG for finding in found):
        found.insert(
            0, Finding(OK, "pairs", f"{judged} of {text.count(len(pairs), 'pair')} known to be compatible")
        )
    return found


def _incompatible(pairs: Sequence[admin.Pair]) -> list[Finding]:
    bad = [pair for pair in pairs if pair.compatible == admin.PAIR_COMPATIBILITY_NO]
    return _shortened(
        [
            Finding(
                WRONG,
                _subject(pair),
                f"incompatible: {pair.reason}",
                "let the router pair equal engines, or give both the same configuration and version: "
                "agentctl diff engine shows all that differs",
            )
            for pair in bad
        ]
    )


def _weights(pairs: Sequence[admin.Pair]) -> list[Finding]:
    bad = [pair for pair in pairs if pair.weights == admin.PAIR_WEIGHTS_DIFFER]
    return _shortened(
        [
            Finding(
                WRONG,
                _subject(pair),
                "the two have loaded different weights: no handshake fails, and answers are wrong"
                + "".join(
                    f" ({each.value}≠{each.peer_value})"
                    for each in pair.differences
                    if each.fact == "weights"
                ),
                "load the same revision on both; if it is the same model in other files, give both the label weights=NAME "
                "in PENSTOCK_LABELS",
            )
            for pair in bad
        ]
    )


def _revisions(pairs: Sequence[admin.Pair]) -> list[Finding]:
    mixed = [pair for pair in pairs if any(each.fact == "revision" for each in pair.differences)]
    if not mixed:
        return []
    words = sorted({word for pair in mixed for word in (pair.revision, pair.peer_revision)})
    what = f"{text.count(len(mixed), 'pair')} of {len(pairs)} mix roll-outs: {', '.join(words)}"
    return [
        Finding(
            NOTE,
            "pairs",
            what,
            "a roll-out under way needs no action; one that has stopped is to be finished or undone",
        )
    ]


def _slow(pairs: Sequence[admin.Pair]) -> list[Finding]:
    return _shortened([_slow_finding(pair, than) for pair in pairs if (than := slowness(pair.speed))])


def _slow_finding(pair: admin.Pair, than: str) -> Finding:
    speed = pair.speed
    now = pair_rows.speed(speed.bytes_per_second)
    if than == "usual":
        against = f", usually {pair_rows.speed(speed.usual_bytes_per_second)}"
    else:
        against = f": {speed.siblings_ratio:.0%} of the median of this engine's other peers"
    transport = f", by {pair.transport}" if pair.transport else ""
    return Finding(
        WRONG,
        _subject(pair),
        f"transfers of {_size(speed.size_class)} run at {now} on rank {speed.rank}{against}{transport}",
        "compare the hosts' links and the transport that UCX logs at its start (UCX_LOG_LEVEL=info): a fallback to TCP, a rail "
        "that is down or shared; many more transfers at once slow each of them, too",
    )


def _size(size_class: str) -> str:
    return size_class.replace(" and more", " or more")


def _shortened(findings: list[Finding]) -> list[Finding]:
    more = len(findings) - _SHOWN
    if more <= 0:
        return findings
    last = findings[_SHOWN]
    rest = last._replace(
        subject="pairs", what=f"the same of {text.count(more, 'pair')} more: agentctl get pairs -o wide"
    )
    return [*findings[:_SHOWN], rest]


def _subject(pair: admin.Pair) -> str:
    return f"pair {text.engine(pair.key)} and {pair_rows.peer_name(pair)}"
