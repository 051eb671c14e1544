"""What the time of a request to its first token was made of, in words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.batch import gate_times
from penstock.agent.traces.query.words import duration

if TYPE_CHECKING:
    from penstock.agent.traces.spans import RequestFacts

# A smaller share of the whole is not named.
_LEAST_SHARE = 0.01


def first_token_words(facts: RequestFacts) -> str:
    """Return where the time to the first token went, the longest gate first; empty if that is not known."""
    times = gate_times(facts.closing) if facts.closing is not None else None
    if times is None or not times.total_nano:
        return ""
    whole = times.total_nano
    named = [(gate, nano) for gate, nano in times.largest_first() if nano >= _LEAST_SHARE * whole]
    gates = ", ".join(
        f"{gate.replace('_', ' ')} {duration(nano)}"
        f"{f' ({nano / whole:.0%})' if not place and len(named) > 1 else ''}"
        for place, (gate, nano) in enumerate(named)
    )
    what = "gave its first token after" if times.first_token else "ended without a token after"
    return f"{what} {duration(whole)}: {gates}"
