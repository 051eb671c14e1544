"""One log line of a kind in an interval."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.instrumentation.core.engine_log import KINDS_MAX, LogLimit

from tests.support.seconds import SecondsClock


def test_without_an_interval_every_line_is_written() -> None:
    """That is vLLM's own behaviour, and what 0 says."""
    limit = LogLimit(SecondsClock())
    for interval in (None, 0.0):
        limit.interval = interval
        assert [limit.admit("a") for _ in range(3)] == [0, 0, 0]


def test_a_kind_has_one_line_in_an_interval() -> None:
    """The next one tells how many were left out; kinds do not disturb each other."""
    clock = SecondsClock()
    limit = LogLimit(clock)
    limit.interval = 5.0
    assert [limit.admit("a"), limit.admit("a"), limit.admit("b"), limit.admit("a")] == [0, None, 0, None]
    clock.now += 5.0
    assert [limit.admit("a"), limit.admit("b"), limit.admit("a")] == [2, 0, None]


def test_the_interval_changes_live() -> None:
    """A shorter one lets the next line through, none lets all through and tells once what was left out."""
    clock = SecondsClock()
    limit = LogLimit(clock)
    limit.interval = 60.0
    assert [limit.admit("a"), limit.admit("a")] == [0, None]
    clock.now += 10.0
    limit.interval = 10.0
    assert [limit.admit("a"), limit.admit("a")] == [1, None]
    limit.interval = None
    assert [limit.admit("a"), limit.admit("a")] == [1, 0]


def test_kinds_are_bounded() -> None:
    """Peers are named by clients: the oldest kind is forgotten."""
    limit = LogLimit(SecondsClock())
    limit.interval = 5.0
    assert {limit.admit(number) for number in range(KINDS_MAX + 10)} == {0}
    assert len(limit._last) == KINDS_MAX


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.0, 3.0), st.sampled_from([None, 0.0, 1.0, 4.0]))),
)
@settings(deadline=None)
def test_nothing_is_lost_from_the_count(steps: list[tuple[str, float, float | None]]) -> None:
    """Of each kind: lines written and lines reported as suppressed add up to the lines asked for."""
    clock = SecondsClock()
    limit = LogLimit(clock)
    asked, written, reported = dict.fromkeys("ab", 0), dict.fromkeys("ab", 0), dict.fromkeys("ab", 0)
    for kind, seconds, interval in steps:
        clock.now += seconds
        limit.interval = interval
        asked[kind] += 1
        suppressed = limit.admit(kind)
        if suppressed is not None:
            written[kind] += 1
            reported[kind] += suppressed
    limit.interval = None
    for kind in "ab":
        reported[kind] += limit.admit(kind) or 0
        assert asked[kind] == written[kind] + reported[kind]
