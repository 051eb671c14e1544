"""The table of replayed reflexes, and the sentences below it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.views import text
from penstock.agent.views.tables import Table
from penstock.agent.views.text import duration
from penstock.proto.v1 import admin_pb2 as admin
from penstock.rules import RECOMPUTE_STORM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NUMBERS = ("asked", "times", "failed", "rescued", "tokens", "price_unknown", "peer_unknown", "limited")
_MAX_UINT64 = (1 << 64) - 1


def reflex_table(engines: Iterable[admin.WhatIfEngine]) -> Table:
    """Return a line for each reflex, of all *engines* together."""
    headers = (
        "REFLEX",
        "ASKED",
        "ACTS",
        "SAVED",
        "LOST",
        "FAILED",
        "RESCUED",
        "TOKENS",
        "NOT-KNOWN",
        "LIMITED",
    )
    return Table(headers, [_row(each) for each in _totals(engines)])


def reflex_notes(engines: Iterable[admin.WhatIfEngine]) -> list[str]:
    """Return the sentences below the table: what was not known, and what only reports."""
    return [line for each in _totals(engines) for line in _notes(each)]


def _totals(engines: Iterable[admin.WhatIfEngine]) -> list[admin.WhatIfReflex]:
    found: dict[str, admin.WhatIfReflex] = {}
    for each in (reflex for engine in engines for reflex in engine.reflexes):
        total = found.setdefault(each.field, admin.WhatIfReflex(field=each.field))
        total.acts |= each.acts
        for name in _NUMBERS:
            setattr(total, name, min(getattr(total, name) + getattr(each, name), _MAX_UINT64))
        for name in ("saved", "lost"):
            time = getattr(total, name)
            time.FromNanoseconds(min(time.ToNanoseconds() + getattr(each, name).ToNanoseconds(), _MAX_UINT64))
    return list(found.values())


def _row(each: admin.WhatIfReflex) -> tuple[str, ...]:
    storm = each.field == RECOMPUTE_STORM
    return (
        each.field,
        str(each.asked),
        str(each.times),
        text.NONE if storm else duration(each.saved),
        text.NONE if storm else duration(each.lost),
        str(each.failed),
        text.NONE if storm else str(each.rescued),
        f"-{each.tokens}" if storm and each.tokens else str(each.tokens),
        str(each.price_unknown + each.peer_unknown),
        str(each.limited),
    )


def _notes(each: admin.WhatIfReflex) -> Iterator[str]:
    if not each.asked:
        what = "loss was recomputed" if each.field == RECOMPUTE_STORM else "load waited"
        yield f"{each.field}: no {what}, so nothing is known of it"
        return
    if each.price_unknown:
        what = (
            "how long requests queue"
            if each.field == RECOMPUTE_STORM
            else "what computing takes on the engine"
        )
        yield f"{each.field}: {what} was not known {_times(each.price_unknown, each.asked)}"
    if each.peer_unknown:
        yield f"{each.field}: what loads from the peer take was not known {_times(each.peer_unknown, each.asked)}"
    if each.limited:
        yield f"{each.field}: perMinute held it back {_times(each.limited, each.asked)}"
    if each.times and not each.acts:
        yield f"{each.field} only reports: that is what it would have done"


def _times(number: int, asked: int) -> str:
    return f"{number} of {text.count(asked, 'time')}"
