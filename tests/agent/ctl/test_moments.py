"""Moments as people write them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from penstock.agent.ctl.moments import moment_at, moment_words, parse_moment

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2026, 11, 28, 12, 30, tzinfo=UTC).timestamp()


@pytest.fixture(params=["UTC", "CET-1"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Live in a time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "moment", "east"),
    [
        ("10m", "2026-11-28 12:20:00", False),
        ("1h30m", "2026-11-28 11:00:00", False),
        ("0s", "2026-11-28 12:30:00", False),
        ("2026-11-28T21:43:10Z", "2026-11-28 21:43:10", False),
        ("2026-11-28T21:43:10+02:00", "2026-11-28 19:43:10", False),
        ("2026-11-27T21:43", "2026-11-27 21:43:00", True),
        ("2026-11-27", "2026-11-27 00:00:00", True),
        ("11:43", "2026-11-28 11:43:00", True),
        ("9:05:10", "2026-11-28 09:05:10", True),
        # What is to come today was yesterday.
        ("21:43", "2026-11-27 21:43:00", True),
    ],
)
def test_moments(zone: str, text: str, moment: str, *, east: bool) -> None:
    """A time without a zone is local; a time of day is the last one of that time."""
    expected = datetime.fromisoformat(f"{moment}+00:00").timestamp() - (3600 if east and zone != "UTC" else 0)
    found = moment_at(parse_moment(text), NOW)
    assert found.timestamp() == expected
    assert datetime.strptime(moment_words(found)[:19], "%Y-%m-%d %H:%M:%S").timestamp() == expected  # noqa: DTZ007  (local)


@pytest.mark.parametrize(
    "text", ["", "now", "25:00", "12:60", "2026-13-01", "2026-11-28T", "-5m", "10", "1:2"]
)
def test_what_is_no_moment(text: str) -> None:
    """The sentence says what is one."""
    with pytest.raises(ValueError, match="is not a time such as 21:43, 2026-11-28T21:43:10Z or 10m"):
        parse_moment(text)


def test_a_time_before_all_times() -> None:
    """It is an error, and no crash."""
    with pytest.raises(OverflowError):
        moment_at(parse_moment("999999d"), NOW)
