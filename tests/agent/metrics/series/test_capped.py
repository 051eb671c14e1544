"""The cap of label sets, idle ones giving way, returning ones resuming."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.metrics.catalogue import from_log
from penstock.agent.metrics.series.engine import IDLE_NANO, MAX_LABEL, RESERVED, Series, SeriesBudget

from tests.support.agent.metric_logs import UNTIMED

if TYPE_CHECKING:
    from penstock.agent.metrics.catalogue.metric import Metric


def failure(peer: str, mode: str = "handshake") -> tuple[str, ...]:
    """Return labels of a failure."""
    return ("kv", "NixlConnector", mode, "refused", peer, "false")


def totals(series: Series) -> dict[tuple[str, ...], int]:
    """Return the exposed values."""
    return {row.labels: row.total for row in series.rows()}


def test_beyond_the_cap_free_text_folds_and_enum_words_stay() -> None:
    """A flood of peers keeps what happened, loses only with whom, and is counted."""
    series = Series(from_log.TRANSFER_FAILURES, cap=2)
    for peer, mode in (("a", "handshake"), ("b", "handshake"), ("c", "late_read"), ("d", "late_read")):
        series.add(failure(peer, mode), 1, time=1)
    assert totals(series) == {
        failure("a"): 1,
        failure("b"): 1,
        ("kv", "__other__", "late_read", "refused", "__other__", "false"): 2,
    }
    assert (series.folded, series.evicted) == (2, 0)


def test_known_label_sets_go_on_at_the_cap() -> None:
    """The cap stops new label sets only."""
    series = Series(from_log.LATE_READS, cap=1)
    for peer in ("a", "b", "a"):
        series.add((peer,), 1, time=1)
    assert totals(series) == {("a",): 2, ("__other__",): 1}


def test_a_peer_that_calls_itself_other() -> None:
    """Clients name peers: it is counted with the rest, and there is one series of that name."""
    series = Series(from_log.LATE_READS, cap=2)
    for peer in ("__other__", "a", "b", "c"):
        series.add((peer,), 1, time=1)
    assert sorted(row.labels for row in series.rows()) == [("__other__",), ("a",), ("b",)]
    assert totals(series)["__other__",] == 2


def test_series_share_a_room() -> None:
    """When it is used up new label sets fold, but for a few of each metric; metrics without free text never do."""
    room = SeriesBudget(20)
    flood, other, words = (
        Series(metric, 1000, room) for metric in (from_log.LATE_READS, from_log.LATE_READS, from_log.EVENTS)
    )
    for number in range(100):
        flood.add((f"peer-{number}",), 1, time=1)
        words.add((f"kind-{number}",), 1, time=1)
    for number in range(RESERVED + 5):
        other.add((f"peer-{number}",), 1, time=1)
    assert sum(totals(flood).values()) == 100
    assert len(totals(flood)) <= 20 + 1
    assert len(totals(words)) == 100
    assert len(totals(other)) == RESERVED + 1
    assert totals(other)["__other__",] == 5
    again = SeriesBudget(20)
    loaded = Series.load(from_log.LATE_READS, flood.dump(), 1000, again)
    assert totals(loaded) == totals(flood)
    assert again.left == 20 - len(totals(flood))


def test_an_idle_label_set_gives_way_and_resumes_when_it_returns() -> None:
    """A counter that comes back goes on where it was, so that increase() stays right."""
    series = Series(from_log.LATE_READS, cap=1)
    series.add(("a",), 5, time=0)
    series.add(("b",), 1, time=IDLE_NANO)
    assert totals(series) == {("b",): 1}
    assert (series.folded, series.evicted, series.resumed) == (0, 1, 0)
    series.add(("a",), 1, time=2 * IDLE_NANO)
    assert totals(series) == {("a",): 6}
    assert (series.folded, series.evicted, series.resumed) == (0, 2, 1)
    assert Series.load(from_log.LATE_READS, series.dump(), 1).resumed == 1
    before = {name: value for name, value in series.dump().items() if name != "resumed"}
    assert Series.load(from_log.LATE_READS, before, 1).resumed == 0


def test_a_label_set_that_was_touched_is_not_idle() -> None:
    """Only label sets without an entry for 15 minutes give way."""
    series = Series(from_log.LATE_READS, cap=2)
    series.add(("a",), 1, time=0)
    series.add(("b",), 1, time=0)
    series.add(("a",), 1, time=IDLE_NANO - 1)
    series.add(("c",), 1, time=IDLE_NANO)
    assert totals(series) == {("a",): 2, ("c",): 1}


def test_a_flood_that_found_nothing_idle_finds_it_later() -> None:
    """Not scanning on each new label set must not hide one that has become idle since."""
    series = Series(from_log.LATE_READS, cap=1)
    series.add(("a",), 1, time=0)
    series.add(("b",), 1, time=IDLE_NANO - 1)
    series.add(("c",), 1, time=IDLE_NANO)
    assert totals(series) == {("c",): 1, ("__other__",): 1}


def test_an_old_entry_that_came_late_is_idle_by_its_own_time() -> None:
    """Sources do not come in the order of time; an earlier look at the others must not hide it."""
    series = Series(from_log.LATE_READS, cap=3)
    for peer, time in (("a", 0), ("b", 0), ("c", 2 * IDLE_NANO), ("d", 2 * IDLE_NANO)):
        series.add((peer,), 1, time)
    assert set(totals(series)) == {("c",), ("d",)}
    series.add(("late",), 1, time=0)
    series.add(("e",), 1, time=2 * IDLE_NANO)
    assert set(totals(series)) == {("c",), ("d",), ("e",)}


def test_parked_label_sets_are_bounded() -> None:
    """Peers that never return do not fill the memory; the first to leave is forgotten first."""
    series = Series(from_log.LATE_READS, cap=1)
    for number in range(7):
        series.add((str(number),), 10, time=number * IDLE_NANO)
    assert len(series.dump()["parked"]) == 4
    series.add(("0",), 1, time=7 * IDLE_NANO)
    assert totals(series) == {("0",): 1}


@UNTIMED
@given(
    st.lists(st.integers(0, 1 << 36)), st.sampled_from([from_log.TRANSFER_SIZE, from_log.TRANSFER_DURATION])
)
def test_observing_many_is_observing_each(values: list[int], metric: Metric) -> None:
    """The fast path of the columns agrees with single observations and with the meaning of le."""
    labels = ("kv", "x")
    one, many = Series(metric), Series(metric)
    for value in values:
        one.add(labels, value, time=1)
    if values:
        many.observe(labels, list(values), time=1)
    assert one.rows() == many.rows()
    for row in one.rows():
        ordered = sorted(values)
        cumulative = [sum(row.counts[: index + 1]) for index in range(len(row.counts))]
        assert cumulative == [*(bisect.bisect_right(ordered, bound) for bound in metric.buckets), len(values)]
        assert row.total == sum(values)


def test_a_label_that_no_peer_has_is_folded() -> None:
    """Text costs memory, disk and every scrape: one of kilobytes, a thousand times, more than all else."""
    series = Series(from_log.LATE_READS)
    series.add(("x" * MAX_LABEL,), 1, time=1)
    for letter in "abc":
        series.add((letter * (MAX_LABEL + 1),), 1, time=1)
    assert totals(series) == {("x" * MAX_LABEL,): 1, ("__other__",): 3}
    assert series.folded == 3


def test_a_dump_of_another_shape_is_refused() -> None:
    """Labels that no longer fit must not be shown under the wrong names."""
    series = Series(from_log.LATE_READS)
    series.add(("a",), 1, time=1)
    with pytest.raises(ValueError, match="penstock_transfer_failures_total has other labels"):
        Series.load(from_log.TRANSFER_FAILURES, series.dump())
    with pytest.raises(ValueError, match="penstock_handshake_duration_seconds has other labels or buckets"):
        Series.load(from_log.HANDSHAKE_DURATION, series.dump())
