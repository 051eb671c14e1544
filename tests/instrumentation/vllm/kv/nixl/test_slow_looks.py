"""What a transfer's time is: real NIXL workers that look often, then seldom, and what the agent makes of their samples."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.batch import BatchColumns
from penstock.agent.limits import MEDIAN_COUNT
from penstock.agent.metrics.latencies.peers import PeerLatencies
from penstock.agent.metrics.latencies.speeds import PairKey, PairSpeeds, Speed, is_slow
from penstock.agent.model import EngineKey
from penstock.proto.names import NANOS
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.engine.recorder import recording
from tests.support.kv.nixl_pair import Engine, connect, instrumented_engines, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.engine.recorder import Recorder

KEY = EngineKey("", "0")
NOW = 1_800_000_000 * NANOS
USUAL, LATE = 25, 5


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """Build a prefill and a decode engine that have shaken hands."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        # Through shared memory a read may end while it is posted.
        prepare(monkeypatch, directory, "tcp,self")
        with instrumented_engines(directory, monkeypatch) as make:
            prefill, decode = make("kv_producer"), make("kv_consumer")
            connect(prefill, decode)
            yield prefill, decode


def _start(engine: Engine, metadata: Any) -> None:
    engine.connector.bind_connector_metadata(metadata)
    engine.connector.start_load_kv(None)


def read(
    pair: tuple[Engine, Engine], recorder: Recorder, name: str, late: Callable[[], bool]
) -> dict[str, Any]:
    """Read blocks once and look at the end when they are here and *late* says so; return the sample."""
    prefill, decode = pair
    decode.cache.zero_()
    prefill.lease(f"prefill-of-{name}")
    recorder.transfers.clear()
    with pytest.MonkeyPatch.context() as patched:
        # It posts the read and does not look.
        patched.setattr(decode, "step", lambda metadata: _start(decode, metadata))
        decode.read(name, prefill)
    deadline = time.monotonic() + 60
    while not (bool((decode.cache[1:4] == prefill.cache[4:7]).all()) and late()):
        assert time.monotonic() < deadline, "the blocks do not come"
    decode.received(name)
    (sample,) = recorder.transfers
    return dict(sample)


def batch_of(sample: dict[str, Any], ago: int) -> Batch:
    """Return a batch of one sample that ended so many seconds ago."""
    batch = Batch(seq=1, strings=["", "peer:5600"])
    values = {**sample, "end_time_unix_nano": NOW - ago * NANOS}
    for name, value in values.items():
        getattr(batch.transfers, name).append(int(name == "peer") if isinstance(value, str) else value)
    return batch


def judged(rows: Sequence[tuple[dict[str, Any], int]]) -> tuple[Speed, PeerLatencies]:
    """Return the speed and the windows of samples and when they ended, seconds ago."""
    speeds, latencies = PairSpeeds(clock=lambda: NOW), PeerLatencies(clock=lambda: NOW)
    for sample, ago in rows:
        contents = BatchColumns(batch_of(sample, ago))
        speeds.apply(KEY, contents)
        latencies.apply(KEY, contents)
    channel = rows[0][0]["channel"]
    return speeds.speeds(KEY, NOW)[PairKey(KEY, channel, "peer:5600", 0)], latencies


def test_a_reader_that_looks_seldom_has_no_slow_link(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """NIXL's duration ends with the look; that the link is slower than usual is not known."""
    usual = [read(pair, recorder, f"usual-{n}", lambda: True) for n in range(USUAL)]
    common = int(statistics.median(each["duration_nano"] for each in usual))
    late = []
    for n in range(8 * LATE):
        posted = time.monotonic_ns()
        sample = read(pair, recorder, f"late-{n}", lambda: time.monotonic_ns() - posted > 40 * common)  # noqa: B023
        # Of one that ended while it was posted NIXL knows how long it took.
        if sample["duration_nano"] > 20 * common:
            late.append(sample)
        if len(late) == LATE:
            break
    for each in late + usual:
        assert 0 <= each["end_uncertainty_nano"] <= each["duration_nano"]
    assert len(late) == LATE >= MEDIAN_COUNT
    assert all(each["end_uncertainty_nano"] > each["duration_nano"] / 2 for each in late)
    rows = [(each, 3600 - n) for n, each in enumerate(usual)]
    speed, latencies = judged([*rows, *((each, 50 - n) for n, each in enumerate(late))])
    assert speed.loose
    assert not is_slow(speed)
    windows = latencies.windows(KEY, "peer:5600", NOW)
    assert windows is not None
    assert windows.least.last_minute.count == windows.transfers.last_minute.count == len(late)
    assert windows.least.last_minute.p50 < windows.transfers.last_minute.p50 / 5
    # The same durations, looked at all the time: the link is slow.
    slow = {**usual[0], "duration_nano": 40 * common, "end_uncertainty_nano": common}
    speed, latencies = judged([*rows, *((slow, 50 - n) for n in range(LATE))])
    assert is_slow(speed)
    assert not speed.loose
    windows = latencies.windows(KEY, "peer:5600", NOW)
    assert windows is not None
    assert windows.least.last_minute.p50 == pytest.approx(windows.transfers.last_minute.p50, rel=0.3)
