"""The alerts that say what a diagnosis says: with the same numbers."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

import pytest
from penstock.agent import limits

# By alert, the comparisons of its expression whose number is in the table.
_SAME: Final = {
    "PenstockPeerSlow": {
        rf"{limits.SLOW_TIMES:g} * ": 2,
        f"> {limits.SLOW_SECONDS:g}": 1,
        f">= {limits.OTHER_PEERS + 1}": 1,
    },
    "PenstockTransferSlowerThanUsual": {f"< {limits.SLOW_SPEED_RATIO:g}": 1},
    "PenstockTransferSlowerThanPeers": {f"< {limits.SLOW_SPEED_RATIO:g}": 1},
    "PenstockFirstTokensLate": {
        f"> {limits.FIRST_TOKENS_TIMES:g} * ": 1,
        f"> {limits.FIRST_TOKENS_SECONDS:g} + ": 1,
    },
    "PenstockRecomputeStorm": {f"> {limits.RECOMPUTED_SHARE:g}\n": 1},
    "PenstockEplbStalls": {f"> {2 * limits.EPLB_SECONDS:g}": 1},
}


@pytest.mark.parametrize("name", _SAME)
def test_an_alert_has_the_number_of_the_table(name: str, alerts: list[dict[str, Any]]) -> None:
    """Each as often as its expression compares with it."""
    expression = next(rule["expr"] for rule in alerts if rule["alert"] == name) + "\n"
    found = {part: len(re.findall(re.escape(part), expression)) for part in _SAME[name]}
    assert found == _SAME[name]


def test_the_table_names_the_alerts_that_are_compared() -> None:
    """And no other, by their names in its text."""
    assert set(re.findall(r"Penstock[A-Z]\w+", inspect.getsource(limits))) == set(_SAME)
