"""How long peers take: what counts, what is sampled, what is bounded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.latencies.peers import PeerLatencies, PeerWindows
from penstock.agent.model import AGENT_PROCESS, EngineKey
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.common_pb2 import (
    FAILURE_MODE_COLLATERAL,
    TRANSFER_RESULT_ERROR,
    TRANSFER_RESULT_OK,
)
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import PEER, TIME, deferral_end, event, transfer_failure
from tests.support.agent.metric_logs import SECOND, source, transfers

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import Event

_KEY = EngineKey("", "0")
_OTHER = "10.0.0.8:5600"
_MS = 1_000_000


def _latencies(*batches: Batch, cap: int = 1000, now: int = TIME) -> PeerLatencies:
    found = PeerLatencies(cap, clock=lambda: now)
    for batch in batches:
        found.apply(_KEY, BatchColumns(batch, batch.SerializeToString()))
    return found


def _windows(found: PeerLatencies, peer: str = PEER) -> PeerWindows:
    windows = found.windows(_KEY, peer, TIME)
    assert windows is not None
    return windows


def _ended(*seconds: float) -> list[Event]:
    return [
        deferral_end(f"r{number}", start_ns=TIME - int(each * SECOND), time_ns=TIME)
        for number, each in enumerate(seconds)
    ]


def test_transfers_waits_and_failures_are_told_apart() -> None:
    """Each peer has its own."""
    batch = transfers([(54 * _MS, 1, PEER, TRANSFER_RESULT_OK), (10 * _MS, 1, _OTHER, TRANSFER_RESULT_OK)])
    batch.events.extend([*_ended(12.9), transfer_failure("f", peer=_OTHER)])
    found = _latencies(batch)
    mine, other = _windows(found), _windows(found, _OTHER)
    assert mine.transfers.last_minute.p50 == pytest.approx(0.054, rel=0.26)
    assert mine.waits.last_minute.p50 == pytest.approx(12.9, rel=0.26)
    assert (mine.failures_last_minute, other.failures_last_minute) == (0, 1)
    assert (other.transfers.last_minute.count, other.waits.last_minute.count) == (1, 0)


@pytest.mark.parametrize(("step", "counted"), [(-3_600, 1), (-240, 2), (240, 1), (3_600, 1)])
def test_what_comes_after_a_step_of_the_clock_is_counted(step: int, counted: int) -> None:
    """Set forward, the old leave the last minute; set back, the new are in it, and those that are little ahead."""
    now = [TIME]
    found = PeerLatencies(clock=lambda: now[0])
    for _ in range(2):
        batch = transfers([(5 * _MS, 1, PEER, TRANSFER_RESULT_OK)], time_ns=now[0])
        batch.events.append(transfer_failure("f", peer=PEER, time_ns=now[0]))
        found.apply(_KEY, BatchColumns(batch, batch.SerializeToString()))
        windows = found.windows(_KEY, PEER, now[0])
        now[0] += step * SECOND
    assert windows is not None
    assert (windows.transfers.last_minute.count, windows.failures_last_minute) == (counted, counted)


def _load_failed(ago: float, mode: int = common.FAILURE_MODE_HANDSHAKE) -> Batch:
    return Batch(events=[transfer_failure("f", peer=PEER, mode=mode, time_ns=TIME - int(ago * SECOND))])


def test_a_failed_load_counts_until_a_transfer_succeeds() -> None:
    """Also after the minute in which its failures are counted; what fails beside a load does not."""
    failed = _load_failed(600)
    found = _windows(_latencies(failed))
    assert (found.failures_last_minute, found.unanswered) == (0, TIME - 600 * SECOND)
    well = transfers([(5 * _MS, 1, PEER, TRANSFER_RESULT_OK)])
    assert _windows(_latencies(failed, well)).unanswered == 0
    assert _windows(_latencies(_load_failed(600, common.FAILURE_MODE_NOTIFICATION))).unanswered == 0

    # It survives a restart; an older agent did not write it down.
    rows = json.loads(json.dumps(list(_latencies(_load_failed(700), failed).dump())))
    again, older, oldest = PeerLatencies(), PeerLatencies(), PeerLatencies()
    again.load(rows)
    older.load([row[:6] for row in rows])
    oldest.load([row[:5] for row in rows])
    times = [(each.unanswered, each.unanswered_since) for each in map(_windows, (again, older, oldest))]
    newest = TIME - 600 * SECOND
    assert times == [(newest, TIME - 700 * SECOND), (newest, newest), (0, 0)]


def _succeeded(ago: float) -> Batch:
    return transfers([(5 * _MS, 1, PEER, TRANSFER_RESULT_OK)], time_ns=TIME - int(ago * SECOND))


@pytest.mark.parametrize(
    ("batches", "since", "answered"),
    [
        ([_load_failed(300), _load_failed(200)], 300, 0),
        ([_load_failed(200), _load_failed(300)], 300, 0),
        ([_load_failed(400), _succeeded(300), _load_failed(200), _load_failed(100)], 200, 300),
        # A transfer between the two that comes late: since when is not known but for the newest.
        ([_load_failed(300), _load_failed(100), _succeeded(200)], 100, 200),
        ([_succeeded(300), _load_failed(400), _load_failed(200)], 200, 300),
    ],
)
def test_since_when_no_load_succeeds(batches: list[Batch], since: float, answered: float) -> None:
    """The first failure behind the newest success, to the slot."""
    found = _windows(_latencies(*batches))
    assert found.unanswered_since == TIME - since * SECOND
    slot = (TIME - int(answered * SECOND)) // (15 * SECOND) if answered else 0
    assert found.answered // (15 * SECOND) == slot


@pytest.mark.parametrize(
    "batch",
    [
        transfers([(5 * _MS, 1, PEER, TRANSFER_RESULT_OK)], time_ns=TIME + 3600 * SECOND),
        transfers([(5 * _MS, 1, "__other__", TRANSFER_RESULT_OK)]),
        transfers([(5 * _MS, 1, "p" * 300, TRANSFER_RESULT_OK)]),
        Batch(events=[deferral_end("r", start_ns=0)]),
        Batch(events=[deferral_end("r", start_ns=TIME + SECOND)]),
        Batch(events=[deferral_end("r", start_ns=TIME - SECOND, peer="")]),
        Batch(events=[transfer_failure("r", mode=FAILURE_MODE_COLLATERAL)]),
        Batch(events=[transfer_failure("r", time_ns=TIME + 3600 * SECOND)]),
        Batch(events=[event("handshake", id=1)]),
    ],
    ids=[
        "a clock ahead", "the word for others", "a long name", "no start",
        "a clock set back", "no peer", "another's fault", "a failure ahead", "another kind",
    ],
)  # fmt: skip
def test_what_says_nothing_about_a_peer_is_left_out(batch: Batch) -> None:
    """It has no windows then."""
    assert not list(_latencies(batch).dump())


@pytest.mark.parametrize(
    "row",
    [
        (5 * _MS, 1, PEER, TRANSFER_RESULT_ERROR),
        (0, 1, PEER, TRANSFER_RESULT_OK),
        (TIME * 2, 1, PEER, TRANSFER_RESULT_OK),
    ],
    ids=["failed", "no duration", "before 1970"],
)
def test_a_transfer_without_a_duration_only_counts_as_traffic(row: tuple[int, int, str, int]) -> None:
    """What a peer moves is known, how long it takes is not."""
    found = _windows(_latencies(transfers([row])))
    assert found.transfers.last_15_minutes.count == 0
    assert found.answered == 0
    assert [each.ok + each.failed for each in found.traffic.values()] == [1]


def test_a_full_batch_is_sampled_and_long_durations_all_count() -> None:
    """The count is right within a stride; the one wait of 12 s among 511 is there."""
    rows = [(54 * _MS, 1, PEER, TRANSFER_RESULT_OK)] * 511 + [(12 * SECOND, 1, _OTHER, TRANSFER_RESULT_OK)]
    found = _latencies(transfers(rows))
    assert _windows(found).transfers.last_minute.count == pytest.approx(511, abs=33)
    assert _windows(found, _OTHER).transfers.last_minute.count == 1


def test_every_duration_of_a_small_batch_counts() -> None:
    """Up to 16 of them."""
    found = _latencies(Batch(events=_ended(*([0.05] * 15), 7.0)))
    waits = _windows(found).waits.last_minute
    assert waits.count == 16
    assert waits.p99 == pytest.approx(7, rel=0.26)


def test_new_peers_replace_idle_ones_only() -> None:
    """At the cap; a flood of names takes nothing from those in use."""
    old = transfers([(_MS, 1, "old", TRANSFER_RESULT_OK)], time_ns=TIME - 1000 * SECOND)
    used = transfers([(_MS, 1, "used", TRANSFER_RESULT_OK)])
    flood = transfers([(_MS, 1, f"p{number}", TRANSFER_RESULT_OK) for number in range(9)])
    found = _latencies(old, used, flood, cap=3)
    assert [row[1] for row in found.dump()] == ["p0", "p1", "used"]


def test_what_is_forgotten_is_gone() -> None:
    """A peer of an engine, or the engine."""
    batch = transfers([(_MS, 1, PEER, TRANSFER_RESULT_OK), (_MS, 1, _OTHER, TRANSFER_RESULT_OK)])
    found = _latencies(batch)
    found.forget(_KEY, PEER)
    assert found.windows(_KEY, PEER, TIME) is None
    found.forget(EngineKey("", "1"))
    assert _windows(found, _OTHER).transfers.last_minute.count == 1
    found.forget(_KEY)
    assert not list(found.dump())


def test_a_dump_comes_back_from_json() -> None:
    """As it was."""
    found = _latencies(Batch(events=[*_ended(0.05, 3), transfer_failure("r")]))
    again = PeerLatencies(clock=lambda: TIME)
    again.load(json.loads(json.dumps(list(found.dump()))))
    assert _windows(again) == _windows(found)


def test_the_aggregator_forgets_with_the_log() -> None:
    """A peer that is forgotten there; what the agent itself writes is no wait."""
    fold = Aggregator()
    fold.apply(source(), BatchColumns(Batch(events=_ended(2))))
    assert fold.peer_windows(_KEY, PEER, TIME) is not None
    agent = source(process=AGENT_PROCESS, epoch=9)
    fold.apply(agent, BatchColumns(Batch(events=[event("forgotten", peer={"address": PEER})])))
    assert fold.peer_windows(_KEY, PEER, TIME) is None
    fold.apply(agent, BatchColumns(Batch(events=_ended(2))))
    assert fold.peer_windows(_KEY, PEER, TIME) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["wait", "failure", "ask"]), st.integers(0, 40), st.integers(1, 20)),
        max_size=20,
    )
)
def test_windows_do_not_depend_on_when_they_were_asked_for(steps: list[tuple[str, int, int]]) -> None:
    """What was asked for before is not what is said now, after an entry or with the time."""
    asked, batches, now = PeerLatencies(clock=lambda: TIME * 2), list[Batch](), TIME
    for kind, later, seconds in steps:
        now += later * 7 * SECOND
        if kind == "ask":
            fresh = _latencies(*batches, now=TIME * 2)
            assert asked.windows(_KEY, PEER, now) == fresh.windows(_KEY, PEER, now)
            continue
        entry = (
            transfer_failure("f", time_ns=now)
            if kind == "failure"
            else deferral_end("r", start_ns=now - seconds * SECOND, time_ns=now)
        )
        batches.append(Batch(events=[entry]))
        asked.apply(_KEY, BatchColumns(batches[-1], batches[-1].SerializeToString()))
