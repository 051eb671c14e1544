"""Values as JSON for the page."""

from __future__ import annotations

import pytest
from penstock.agent.page.wire import MAX_TEXT, encode, milliseconds, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("prefill-0:5600", "prefill-0:5600"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("x" * (MAX_TEXT + 1), "x" * (MAX_TEXT - 1) + "…"),
    ],
)
def test_a_text_that_somebody_else_chose(text: str, shown: str) -> None:
    """It moves no cursor, and is no longer than a line."""
    assert plain(text) == shown


def test_json_without_spaces() -> None:
    """And what is no number is none."""
    assert encode({"at": milliseconds(1_500_000_000), "p50": float("nan")}) == b'{"at":1500,"p50":null}'
