"""The aggregator: the same counters for any cut of the log and any order of sources."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.batch import FEW, GATES
from penstock.agent.batch import columns as columns_module
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.batch.rows import transfer_rows
from penstock.agent.errors import StateError
from penstock.agent.metrics import batch_counting
from penstock.agent.metrics import batch_counting as counting_module
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.catalogue import from_log
from penstock.agent.metrics.latencies import is_slow
from penstock.agent.metrics.series.engine import IDLE_NANO, EngineSeries, SeriesBudget
from penstock.agent.metrics.series.updates import transfer_updates
from penstock.agent.model import AGENT_PROCESS, EngineKey
from penstock.proto.v1.common_pb2 import (
    DEFERRAL_ENDING_ENGINE_LOST,
    DEFERRAL_ENDING_READY,
    TRANSFER_RESULT_ERROR,
    TRANSFER_RESULT_OK,
)
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import TIME, deferral_end, event, transfer_failure
from tests.support.agent.metric_logs import BATCHES, LOGS, UNTIMED, source, transfers

if TYPE_CHECKING:
    from penstock.agent.model import Source
    from penstock.proto.v1.events_pb2 import Event

Log = list[tuple["Source", Batch]]


def aggregated(log: Log, cap: int = 1000) -> Aggregator:
    """Fold a log from the beginning."""
    aggregator = Aggregator(cap)
    for origin, batch in log:
        aggregator.apply(origin, BatchColumns(batch))
    return aggregator


def counters(aggregator: Aggregator) -> dict[tuple[object, ...], tuple[object, ...]]:
    """Return every series with its value."""
    return {
        (engine.key, metric.name, row.labels): (row.total, row.counts)
        for engine in aggregator.engines()
        for metric, rows in engine.rows.items()
        for row in rows
    }


@UNTIMED
@given(LOGS, st.data(), st.sampled_from([1, 3, 1000]))
def test_a_dump_and_the_rest_of_the_log_are_the_whole_log(log: Log, data: st.DataObject, cap: int) -> None:
    """A restart at any point changes nothing, at the cap of label sets too."""
    cut = data.draw(st.integers(0, len(log)))
    whole = aggregated(log, cap)
    restarted = Aggregator(cap)
    restarted.load(aggregated(log[:cut], cap).dump())
    for origin, batch in log[cut:]:
        restarted.apply(origin, BatchColumns(batch))
    assert restarted.dump() == whole.dump()
    assert counters(restarted) == counters(whole)


@UNTIMED
@given(LOGS)
def test_the_order_of_sources_does_not_matter(log: Log) -> None:
    """Each source's batches keep their order; how those of several interleave changes no counter."""
    by_source = sorted(log, key=lambda row: -row[0].epoch)
    assert counters(aggregated(log)) == counters(aggregated(by_source))


@UNTIMED
@given(st.lists(BATCHES, max_size=5))
def test_columns_count_as_their_rows_do(batches: list[Batch]) -> None:
    """The columnar path and one batch per sample give the same series."""
    columns = aggregated([(source(), batch) for batch in batches if batch.transfers.end_time_unix_nano])
    rows = aggregated(
        [
            (
                source(),
                transfers(
                    [(row.duration_nano, row.bytes, row.peer, row.result)], time_ns=row.end_time_unix_nano
                ),
            )
            for batch in batches
            for row in transfer_rows(batch)
        ]
    )
    assert counters(columns) == counters(rows)


@UNTIMED
@given(LOGS, st.sampled_from([1, 3, 1000]), st.sampled_from([2, 50_000]))
def test_what_is_counted_at_once_is_as_one_by_one(log: Log, cap: int, total: int) -> None:
    """Ended waits and requests: the same counters, times and label sets, at the caps too."""
    at_once, one_by_one = Aggregator(cap, total), Aggregator(cap, total)
    for origin, batch in log:
        with patch.object(counting_module, "FEW", 1), patch.object(columns_module, "FEW", 1):
            at_once.apply(origin, BatchColumns(batch, batch.SerializeToString()))
        with (
            patch.object(counting_module, "_add_ended", return_value=False),
            patch.object(counting_module, "_add_closed", return_value=False),
        ):
            one_by_one.apply(origin, BatchColumns(batch))
        assert at_once.dump() == one_by_one.dump()


def test_waits_that_cannot_be_counted_at_once_are_counted_one_by_one() -> None:
    """A bug in the short way costs time, no entry."""
    batch = Batch(events=[deferral_end("r"), deferral_end("r", reason=99)] * FEW)
    origin = source()
    with patch.object(counting_module, "ended_bulks", side_effect=RuntimeError("a bug")):
        one_by_one = aggregated([(origin, batch)] * 2)
    assert one_by_one.dump() == aggregated([(origin, batch)] * 2).dump()


def closed(first_token: int = TIME, **gates: int) -> Event:
    """Return the end of a request, with the nanoseconds of its gates."""
    return event("request_closed", "r", first_token_time_unix_nano=first_token, gates=gates)


def test_each_request_counts_at_every_gate() -> None:
    """The sums of the gates are the time to first token, and each gate has the same number of requests."""
    batch = Batch(
        events=[closed(queue_nano=2, own_prefill_nano=40), closed(peer_nano=10**9, own_prefill_nano=8)] * FEW
    )
    aggregator = Aggregator()
    aggregator.apply(source(), BatchColumns(batch))
    # All at once, since their series are known.
    aggregator.apply(source(), BatchColumns(batch, batch.SerializeToString()))
    (engine,) = aggregator.engines()
    rows = engine.rows[from_log.TIME_TO_FIRST_TOKEN]
    assert {row.labels: row.total for row in rows if row.total} == {
        ("queue",): 4 * FEW,
        ("peer",): 2 * 10**9 * FEW,
        ("own_prefill",): 96 * FEW,
    }
    assert {row.labels[0]: sum(row.counts) for row in rows} == dict.fromkeys(GATES, 4 * FEW)


@pytest.mark.parametrize(
    "ended",
    [
        event("request_closed", "r", first_token_time_unix_nano=TIME),
        closed(first_token=0, queue_nano=5),
        closed(queue_nano=TIME, peer_nano=1),
        closed(),
    ],
    ids=["an older engine", "no first token", "before 1970", "no time"],
)
@pytest.mark.parametrize("others", [0, 1, FEW])
def test_a_request_without_a_known_time_to_first_token_does_not_count(ended: Event, others: int) -> None:
    """Nothing is shown where nothing is known; other requests of its batch count."""
    batch = Batch(events=[ended, *([closed(queue_nano=1, own_prefill_nano=2)] * others)])
    aggregator = Aggregator()
    for _ in range(2):
        aggregator.apply(source(), BatchColumns(batch, batch.SerializeToString()))
    (engine,) = aggregator.engines()
    rows = engine.rows.get(from_log.TIME_TO_FIRST_TOKEN, [])
    assert {row.labels[0]: sum(row.counts) for row in rows} == (
        dict.fromkeys(GATES, 2 * others) if others else {}
    )


def test_some_metrics_of_the_copy_are_those_of_the_whole_copy() -> None:
    """Who needs a few need not pay for all; a metric that has no series is not there."""
    origin = source()
    aggregator = aggregated([(origin, Batch(events=[transfer_failure("r")]))])
    (whole,), (part,) = (
        aggregator.engines(),
        aggregator.engines({from_log.TRANSFER_FAILURES, from_log.LOAD_OUTCOMES}),
    )
    assert part.rows == {from_log.TRANSFER_FAILURES: whole.rows[from_log.TRANSFER_FAILURES]}


def test_failed_transfers_have_no_duration() -> None:
    """How long a peer takes must not change with how often it fails."""
    rows = [(5_000_000, 1 << 20, "p:1", TRANSFER_RESULT_OK), (9, 9, "p:1", TRANSFER_RESULT_ERROR)]
    (engine,) = aggregated([(source(), transfers(rows))]).engines()
    assert {row.labels[-1]: row.total for row in engine.rows[from_log.TRANSFERS]} == {"ok": 1, "error": 1}
    ((_, total, counts, _),) = engine.rows[from_log.TRANSFER_DURATION]
    assert (total, sum(counts), counts[2]) == (5_000_000, 1, 1)
    assert engine.last_entry_unix_nano == TIME


def test_what_the_cap_does_is_counted_by_metric() -> None:
    """Folded updates, and label sets that were evicted or resumed, are series themselves."""
    aggregator = Aggregator(cap=1)
    for peer, time in (("a", 0), ("b", 0), ("c", IDLE_NANO), ("a", 2 * IDLE_NANO)):
        aggregator.apply(
            source(), BatchColumns(Batch(events=[transfer_failure("r", peer=peer, time_ns=TIME + time)]))
        )
    (engine,) = aggregator.engines()
    assert [(row.labels, row.total) for row in engine.rows[from_log.LABEL_SETS_FOLDED]] == [
        ((from_log.TRANSFER_FAILURES.name,), 1)
    ]
    assert [(row.labels, row.total) for row in engine.rows[from_log.LABEL_SETS_EVICTED]] == [
        ((from_log.TRANSFER_FAILURES.name,), 2)
    ]
    assert [(row.labels, row.total) for row in engine.rows[from_log.LABEL_SETS_RESUMED]] == [
        ((from_log.TRANSFER_FAILURES.name,), 1)
    ]


def test_a_metric_that_is_gone_is_left_out_and_a_new_one_begins_at_zero() -> None:
    """An upgrade that adds or removes a metric needs no migration."""
    state = json.loads(
        zlib.decompress(aggregated([(source(), Batch(events=[transfer_failure("r")]))]).dump())
    )
    series = state["engines"][0]["series"]
    series["penstock_gone_total"] = series.pop(from_log.TRANSFER_FAILURES.name)
    aggregator = Aggregator()
    aggregator.load(zlib.compress(json.dumps(state).encode()))
    assert aggregator.known() == [EngineKey("", "0")]
    (engine,) = aggregator.engines()
    assert from_log.EVENTS in engine.rows
    assert from_log.TRANSFER_FAILURES not in engine.rows


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"junk", "cannot be used"),
        (zlib.compress(b"{"), "cannot be used"),
        (zlib.compress(b"{}")[:-1], "they are cut"),
        (zlib.compress(b"{}"), "cannot be used"),
        (zlib.compress(b'{"version":99,"engines":[]}'), "version 99, this agent writes 2"),
        (zlib.compress(b'{"version":2,"engines":[{"key":["","0"]}]}'), "cannot be used"),
        (
            zlib.compress(
                b'{"version":2,"engines":[{"key":["","0"],"time":0,"series":{"penstock_late_reads_total":'
                b'{"folded":0,"evicted":0,"live":[[[],0,1,[]]],"other":[],"parked":[]}}}]}'
            ),
            "penstock_late_reads_total has other labels",
        ),
    ],
)
def test_a_dump_that_cannot_be_used_changes_nothing(blob: bytes, reason: str) -> None:
    """The load asks for a replay of the log and leaves the state unchanged."""
    aggregator = aggregated([(source(), Batch(events=[transfer_failure("r")]))])
    before = aggregator.dump()
    with pytest.raises(StateError, match=reason):
        aggregator.load(blob)
    assert aggregator.dump() == before


def test_a_dump_that_unpacks_to_more_than_any_agent_writes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be of a bundle, which anybody may have made; one that is as large as allowed is loaded."""
    blob = aggregated([(source(), Batch(events=[transfer_failure("r")]))]).dump()
    size = len(zlib.decompress(blob))
    monkeypatch.setattr("penstock.agent.metrics.aggregator._MAX_SAVED", size)
    Aggregator().load(blob)
    monkeypatch.setattr("penstock.agent.metrics.aggregator._MAX_SAVED", size - 1)
    with pytest.raises(StateError, match="they have more than"):
        Aggregator().load(blob)


@pytest.mark.parametrize(
    "rows",
    [
        7,
        [["other"]],
        [[["", "0"], "p", [1, [[0, 1, [[0, -1]]]]], [0, []], [0, []]]],
        [[["", "0"], "p", [1, [[0, 1, [[999, 1]]]]], [0, []], [0, []]]],
    ],
)
def test_windows_of_another_version_do_not_cost_the_counters(rows: object) -> None:
    """They begin empty: a replay would count only what the log still holds."""
    aggregator = aggregated([(source(), Batch(events=[transfer_failure("r")]))])
    before = aggregator.engines()
    state = json.loads(zlib.decompress(aggregator.dump()))
    state["peers"] = rows
    aggregator.load(zlib.compress(json.dumps(state).encode()))
    assert aggregator.engines() == before
    assert json.loads(zlib.decompress(aggregator.dump()))["peers"] == []


def lost(epoch: int, *ends: Event) -> Batch:
    """Build what the agent writes when a source vanished and left deferrals open."""
    return Batch(events=[*ends, event("source_lost", epoch=epoch)])


def ended(request_id: str, start_ns: int = TIME, ending: int = DEFERRAL_ENDING_ENGINE_LOST) -> Event:
    """Build the end of a deferral after one second."""
    return deferral_end(request_id, start_ns=start_ns, time_ns=start_ns + 10**9, ending=ending)


@pytest.mark.parametrize("restart", [False, True])
def test_a_deferral_that_ended_with_its_engine_does_not_end_again(*, restart: bool) -> None:
    """The engine was away only; what has begun since then, and what others do, is counted as ever."""
    agent, core = source(process="agent", epoch=9), source(epoch=1)
    began = Batch(events=[transfer_failure("x")])
    aggregator = aggregated([(core, began), (agent, lost(1, ended("a"), ended("b")))])
    if restart:
        aggregator, blob = Aggregator(), aggregator.dump()
        aggregator.load(blob)
    ready = DEFERRAL_ENDING_READY
    again = Batch(events=[ended("a", ending=ready), ended("a", TIME + 1, ready), ended("c", ending=ready)])
    aggregator.apply(core, BatchColumns(again, again.SerializeToString()))
    other = Batch(events=[ended("b", ending=ready)])
    aggregator.apply(source(epoch=2), BatchColumns(other, other.SerializeToString()))
    (rows,) = aggregator.engines()
    totals = {row.labels[1]: row.total for row in rows.rows[from_log.DEFERRALS]}
    assert totals == {"engine_lost": 2, "ready": 3}
    assert sum(sum(row.counts) for row in rows.rows[from_log.DEFERRED_TIME]) == 5
    assert sum(row.total for row in rows.rows[from_log.EVENTS] if row.labels == ("deferral_end",)) == 6


def test_ends_by_loss_are_remembered_within_bounds() -> None:
    """Engines that never come back cost no more than that."""
    with patch.object(batch_counting, "MAX_ENDED", 2):
        aggregator = aggregated([(source(process="agent", epoch=9), lost(1, *map(ended, "abc")))])
        assert len(aggregator._ended.dump()) == 2


@pytest.mark.parametrize("others", [0, 1])
def test_a_duration_that_exceeds_its_end_is_not_known(others: int) -> None:
    """It would be in the sum for ever; alone in its batch or not, row by row or in columns."""
    ok = TRANSFER_RESULT_OK
    rows = [((1 << 64) - 1, 8, "a", ok), (7, 8, "a", ok), *[(9, 8, "b", ok)] * others]
    batch = transfers(rows)
    columns = aggregated([(source(), batch)])
    one_by_one = Aggregator()
    for sample in transfer_rows(batch):
        for metric, labels, value in transfer_updates(sample):
            one_by_one._engines.setdefault(source().key, EngineSeries(1000, SeriesBudget())).add(
                metric, labels, value, TIME
            )
    for aggregator in (columns, one_by_one):
        (engine,) = aggregator.engines()
        assert sum(row.total for row in engine.rows[from_log.TRANSFERS]) == 2 + others
        timed = engine.rows[from_log.TRANSFER_DURATION]
        assert sum(row.total for row in timed) == 7 + 9 * others
        assert sum(sum(row.counts) for row in timed) == 1 + others


def forgotten(**body: Any) -> Batch:
    """Build what the agent writes when it forgets something."""
    return Batch(events=[event("forgotten", **body)])


def test_what_is_forgotten_begins_at_zero() -> None:
    """The engine with all its series, or one peer's; others stay, and the room of what has gone is free again."""
    agent, engine, other = source(process=AGENT_PROCESS, epoch=9), source(), source("1", epoch=3)
    aggregator = aggregated(
        [
            (engine, Batch(events=[transfer_failure("r", peer="a"), transfer_failure("r", peer="b")])),
            (other, Batch(events=[transfer_failure("r", peer="a")])),
        ],
    )
    assert aggregator.counting_peer("a") == [engine.key, other.key]
    room = aggregator._room.left
    aggregator.apply(agent, BatchColumns(forgotten(peer={"address": "a"})))
    assert aggregator.counting_peer("a") == [other.key]
    assert aggregator.counting_peer("b") == [engine.key]
    assert aggregator._room.left == room  # One series less, and one of this event's kind.
    aggregator.apply(agent, BatchColumns(forgotten(author="me")))
    assert aggregator.known() == [other.key]
    aggregator.apply(agent, BatchColumns(Batch(events=[event("source_lost", epoch=2)])))
    assert aggregator.known() == [other.key]
    aggregator.apply(engine, BatchColumns(Batch(events=[transfer_failure("r", peer="b")])))
    aggregator.apply(engine, BatchColumns(Batch(events=[transfer_failure("r", peer="b")])))
    back = next(item for item in aggregator.engines() if item.key == engine.key)
    assert [row.total for row in back.rows[from_log.TRANSFER_FAILURES]] == [2]


@given(cut=st.integers(0, 4))
def test_a_replay_forgets_at_the_same_place(cut: int) -> None:
    """However much of the log a saved state holds."""
    log = [
        (source(), Batch(events=[transfer_failure("r", peer="a")])),
        (source(process=AGENT_PROCESS, epoch=9), forgotten(peer={"address": "a"})),
        (source(), Batch(events=[transfer_failure("r", peer="b")])),
        (source(process=AGENT_PROCESS, epoch=9), forgotten()),
        (source(), Batch(events=[transfer_failure("r", peer="a")])),
    ]
    whole, saved = aggregated(log), Aggregator()
    saved.load(aggregated(log[:cut]).dump())
    for of, batch in log[cut:]:
        saved.apply(of, BatchColumns(batch))
    assert saved.dump() == whole.dump()


@pytest.mark.parametrize(("look", "slow"), [(0.0, False), (0.001, True), (1.0, False)])
def test_a_reader_that_looks_once_a_second_has_no_slow_peer(look: float, *, slow: bool) -> None:
    """One link and one size, as NIXL tells it: looked at every millisecond for an hour, then every second."""
    aggregator, engine = Aggregator(), source()
    rows = [(3_600 - 60 * n, 0.0204) for n in range(25)] + [(50 - 5 * n, 1.0167) for n in range(8)]
    for ago, seconds in rows:
        row = (int(seconds * 1e9), 4 << 20, "peer:5600", TRANSFER_RESULT_OK)
        batch = transfers([row], time_ns=TIME - ago * 10**9)
        batch.seq = 1
        # An engine that does not tell of its looks.
        batch.transfers.ClearField("end_uncertainty_nano")
        aggregator.apply(engine, BatchColumns(batch, batch.SerializeToString()))
    (speed,) = aggregator.pair_speeds(engine.key, TIME, look).values()
    assert is_slow(speed) == slow
    assert speed.count == 8
