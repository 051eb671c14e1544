"""Bytes/s of pairs: now, usual, siblings; undecided with too few transfers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.batch import BatchColumns
from penstock.agent.limits import MEDIAN_COUNT, USUAL_COUNT
from penstock.agent.metrics.latencies.speeds import (
    SIZE_CLASSES,
    SPEED_BOUNDS,
    PairKey,
    PairSpeeds,
    Speed,
    at_best,
    is_slow,
    median,
)
from penstock.agent.model import EngineKey
from penstock.proto.names import NANOS
from penstock.proto.v1.common_pb2 import CHANNEL_KV, TRANSFER_RESULT_ERROR, TRANSFER_RESULT_OK
from penstock.proto.v1.ingest_pb2 import Batch

KEY = EngineKey("", "0")
MINUTE = 60 * NANOS
NOW = 1_800_000_000 * NANOS
MB = 1 << 20
PEER = PairKey(KEY, CHANNEL_KV, "p:1", 0)


def add(speeds: PairSpeeds, ends: list[int], rate: float, *, size: int = 4 * MB, peer: str = "p:1", rank: int = 0, result: int = TRANSFER_RESULT_OK) -> None:  # fmt: skip
    """Add transfers of *rate* bytes/s that end at *ends*, a batch each."""
    for end in ends:
        batch = Batch(seq=1, strings=["", peer])
        columns = batch.transfers
        columns.end_time_unix_nano.append(end)
        columns.duration_nano.append(int(size / rate * NANOS))
        columns.end_uncertainty_nano.append(0)
        columns.bytes.append(size)
        columns.channel.append(CHANNEL_KV)
        columns.result.append(result)  # type: ignore[arg-type]
        columns.rank.append(rank)
        columns.peer.append(1)
        speeds.apply(KEY, BatchColumns(batch))


def speeds_at(now: int = NOW) -> PairSpeeds:
    """Return empty speeds whose clock stands at *now*."""
    return PairSpeeds(clock=lambda: now)


def every(seconds: int, since: int, until: int = 0) -> list[int]:
    """Return times from *since* to *until* seconds before now."""
    return [NOW - each * NANOS for each in range(since, until, -seconds)]


def of(speeds: PairSpeeds, key: PairKey = PEER) -> Speed:
    """Return the speed of one pair."""
    return speeds.speeds(KEY, NOW)[key]


@pytest.mark.parametrize(
    ("before", "now", "decided"),
    [
        (USUAL_COUNT, MEDIAN_COUNT, True),
        (USUAL_COUNT - 1, MEDIAN_COUNT, False),
        (USUAL_COUNT, MEDIAN_COUNT - 1, False),
    ],
)
def test_too_few_transfers_are_undecided(before: int, now: int, decided: bool) -> None:
    """The speed is shown, the ratio is not."""
    speeds = speeds_at()
    add(speeds, [NOW - 40 * MINUTE] * before, 100 * MB)
    add(speeds, [NOW - NANOS] * now, 100 * MB)
    found = of(speeds)
    assert (found.ratio is not None) == decided
    assert found.now == pytest.approx(100 * MB, rel=0.42)


def test_a_step() -> None:
    """A fallback to a tenth shows within a minute, and still half an hour later."""
    speeds = speeds_at()
    add(speeds, every(30, 12 * 3600, 60), 1000 * MB)
    assert of(speeds).ratio == pytest.approx(1, rel=0.01)
    add(speeds, every(8, 59), 100 * MB)
    assert of(speeds).ratio == pytest.approx(0.1, rel=0.5)
    later = PairSpeeds(clock=lambda: NOW)
    add(later, every(30, 12 * 3600, 1800), 1000 * MB)
    add(later, every(8, 1800), 100 * MB)
    assert of(later).ratio == pytest.approx(0.1, rel=0.5)


def test_a_slow_drift() -> None:
    """Half of the day's speed is lost bit by bit: the day's median is still above now."""
    speeds = speeds_at()
    for hour in range(20, -1, -1):
        add(speeds, every(120, (hour + 1) * 3600, hour * 3600), 1000 * MB * 0.88 ** (20 - hour))
    ratio = of(speeds).ratio
    assert ratio is not None
    assert 0.1 < ratio < 0.5


def test_another_mix_of_sizes_is_no_change() -> None:
    """Small transfers are slow; when only they are left, they are compared with small ones."""
    speeds = speeds_at()
    add(speeds, every(60, 7200, 60), 1000 * MB, size=64 * MB)
    add(speeds, every(60, 7200, 60), 5 * MB, size=MB // 8)
    add(speeds, every(8, 59), 5 * MB, size=MB // 8)
    found = of(speeds)
    # The large ones of the last 15 minutes are as ever.
    assert found.ratio == pytest.approx(1, rel=0.01)
    assert SIZE_CLASSES[found.size_class] == "16 MiB and more"


def test_siblings_and_ranks() -> None:
    """A peer is compared with the engine's others; each rank stands for itself."""
    speeds = speeds_at()
    for peer in ("p:2", "p:3"):
        add(speeds, every(5, 60), 1000 * MB, peer=peer)
    add(speeds, every(5, 60), 100 * MB)
    add(speeds, every(5, 60), 1000 * MB, rank=1)
    assert of(speeds).siblings_ratio == pytest.approx(0.1, rel=0.5)
    assert of(speeds, PEER._replace(rank=1)).siblings_ratio == pytest.approx(1, rel=0.5)
    for peers in ((), ("p:2",), ("p:2", "host", "disk", "unknown")):
        few = speeds_at()
        for peer in ("p:1", *peers):
            add(few, every(5, 60), 100 * MB, peer=peer)
        assert of(few).siblings_ratio is None
    add(speeds, every(5, 60), 100 * MB, peer="host")
    assert of(speeds, PEER._replace(peer="host")).siblings_ratio is None


def test_a_sample_counts_as_what_was_seen() -> None:
    """Of a batch of 500 some 16 transfers are looked at, whoever they are with: one of a peer stays one."""
    batch = Batch(seq=0, strings=["", "p:1", "p:2"])
    columns = batch.transfers
    for place in range(500):
        columns.end_time_unix_nano.append(NOW)
        columns.duration_nano.append(NANOS)
        columns.bytes.append(MB)
        columns.channel.append(CHANNEL_KV)
        columns.result.append(TRANSFER_RESULT_OK)
        columns.rank.append(0)
        columns.peer.append(1 if not place else 2)
    speeds = speeds_at()
    speeds.apply(KEY, BatchColumns(batch))
    found = speeds.speeds(KEY, NOW)
    assert found[PEER].count == 1
    assert found[PEER._replace(peer="p:2")].count == 16


def test_what_does_not_count() -> None:
    """Failed ones, those without bytes, those of the future; and nothing is there after 15 idle minutes."""
    speeds = speeds_at()
    add(speeds, [NOW], MB, result=TRANSFER_RESULT_ERROR)
    add(speeds, [NOW + 3600 * NANOS], MB)
    assert speeds.speeds(KEY, NOW) == {}
    add(speeds, [NOW], MB)
    assert set(speeds.speeds(KEY, NOW)) == {PEER}
    assert speeds.speeds(KEY, NOW + 16 * MINUTE) == {}
    speeds.forget(KEY, "p:1")
    assert speeds.speeds(KEY, NOW) == {}


def test_the_number_of_pairs_is_bounded() -> None:
    """A new one replaces those idle for 15 minutes; without any it has no speed."""
    speeds = PairSpeeds(cap=2, clock=lambda: NOW)
    for peer, end in (("a", NOW - 60 * MINUTE), ("b", NOW), ("c", NOW), ("d", NOW)):
        add(speeds, [end], MB, peer=peer)
    assert {key.peer for key in speeds.speeds(KEY, NOW)} == {"b", "c"}


@given(st.lists(st.tuples(st.integers(0, 90_000), st.sampled_from([1, 50, 4000]), st.sampled_from([1, 8, 99])), max_size=30), st.randoms())  # fmt: skip
def test_order_and_restarts_change_nothing(rows: list[tuple[int, int, int]], random: object) -> None:
    """The state is the same for any order of entries, and after it was written and read."""
    shuffled = sorted(rows, key=lambda _: random.random())  # type: ignore[attr-defined]
    states = []
    for order in (rows, shuffled):
        speeds = speeds_at()
        for seconds, rate, size in order:
            add(speeds, [NOW - seconds * NANOS], rate * MB, size=size * MB)
        restored = speeds_at()
        restored.load(json.loads(json.dumps(list(speeds.dump()))))
        assert restored.speeds(KEY, NOW) == speeds.speeds(KEY, NOW)
        states.append(list(speeds.dump()))
    assert states[0] == states[1]


@given(
    st.lists(st.integers(0, 9), min_size=len(SPEED_BOUNDS) + 1, max_size=len(SPEED_BOUNDS) + 1).filter(any)
)
def test_a_median_is_in_its_bucket(counts: list[int]) -> None:
    """At least half of the transfers are as fast or slower, whatever the histogram."""
    found = median(counts)
    assert 0 <= found <= SPEED_BOUNDS[-1]
    at_most = sum(
        count for bucket, count in enumerate(counts) if not bucket or SPEED_BOUNDS[bucket - 1] <= found
    )
    assert at_most * 2 >= sum(counts)


SLOW = Speed(
    now=4.0 * MB, count=8, usual=400.0 * MB, usual_count=50, size_class=1, ratio=0.01, siblings_ratio=0.02
)


@pytest.mark.parametrize(
    ("took", "look", "ratios"),
    [
        # Not known how often it looks, or how long a transfer took: as it is.
        (1.0, 0.0, (None, None)),
        (0.0, 1.0, (None, None)),
        # Seen once a second: it may have taken no time at all.
        (1.13, 1.0, (None, None)),
        (1.0, 2.0, (None, None)),
        # Of three seconds one and a half are sure.
        (3.0, 1.0, (0.02, 0.04)),
        (3.0, 0.001, (0.01, 0.02)),
        # No faster than usual.
        (1.0, 0.66, (1.0, 1.0)),
    ],
)
def test_a_speed_at_best(took: float, look: float, ratios: tuple[float | None, float | None]) -> None:
    """Durations run until the reader looks."""
    found = at_best(SLOW, took, look)
    for each, expected in zip((found.ratio, found.siblings_ratio), ratios, strict=True):
        assert each == (None if expected is None else pytest.approx(expected, rel=0.01))
    assert (found.now, found.count) == (SLOW.now, SLOW.count)


@given(st.floats(0, 10), st.floats(0, 10), st.none() | st.floats(0.001, 5), st.none() | st.floats(0.001, 5))
def test_a_speed_at_best_is_no_slower(
    took: float, look: float, ratio: float | None, siblings: float | None
) -> None:
    """And nothing is known that was not known before."""
    speed = Speed(1.0, 8, 1.0, 50, 1, ratio, siblings)
    best = at_best(speed, took, look)
    for before, after in ((ratio, best.ratio), (siblings, best.siblings_ratio)):
        assert after is None or (before is not None and after >= before)


@pytest.mark.parametrize(
    ("ratios", "slow"),
    [((None, None), False), ((0.24, None), True), ((None, 0.24), True), ((0.25, 1.0), False)],
)
def test_what_is_slow(ratios: tuple[float | None, float | None], *, slow: bool) -> None:
    """Below a quarter of the usual, or of the other peers."""
    assert is_slow(Speed(1.0, 8, 1.0, 50, 1, *ratios)) == slow
