"""Queries of the log."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.errors import ImpossibleError
from penstock.agent.journal.database.connection import signed, unsigned
from penstock.agent.journal.index.disk_format import kind_rows, request_ids, request_key
from penstock.agent.journal.query import reader as reading
from penstock.agent.journal.query.reader import ReadBudget
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch, Goodbye

from tests.support.agent.batches import TIME, deferral_start, event, sample_batch, transfer_failure


def pairs(found):
    """Return (batch id, index) of each entry found."""
    return [(logged.id, pos) for logged, pos in found]


def test_a_batch_is_found_by_every_id_that_it_names():
    """Own, remote and external ids, waiters, and those of the samples."""
    batch = sample_batch(
        ["sampled"],
        events=[
            transfer_failure("own", remote_request_id="remote"),
            event("request_closed", "closed", external_request_id="external", remote_request_id="prefill"),
            event("handshake", waiting_request_ids=["w1", "w2"]),
            Event(request_id="newer"),
        ],
    )
    batch.probes.request_id.append(0)
    assert request_ids(BatchColumns(batch)) == {
        "sampled", "own", "remote", "closed", "external", "prefill", "w1", "w2", "newer"
    }  # fmt: skip


def test_a_time_that_sqlite_cannot_hold_is_cut():
    """Times above SQLite's range are stored as its largest: the wire's time is unsigned."""
    batch = Batch(events=[Event(time_unix_nano=2**64 - 1), transfer_failure("r")])
    assert kind_rows(BatchColumns(batch)) == [(0, 2**63 - 1), (16, TIME)]


def test_a_kind_has_one_row_with_the_newest_time():
    """However many events of it are in the batch, in whatever order; a time of 0 is one, too."""
    batch = Batch(events=[transfer_failure("r", time_ns=time) for time in (5, 7, 6)] + [Event()])
    assert kind_rows(BatchColumns(batch)) == [(16, 7), (0, 0)]


@given(st.integers(0, 2**64 - 1))
def test_epochs_survive_sqlite(epoch):
    """All 64 bits come back, in SQLite's range meanwhile."""
    assert -(2**63) <= signed(epoch) < 2**63
    assert unsigned(signed(epoch)) == epoch


async def test_batches_are_paged_in_order(journal, log):
    """After a position, ascending, at most so many."""
    for seq in range(1, 6):
        await log(seq)
    with journal.reader() as reader:
        assert [logged.id for logged in reader.batches(1, limit=2)] == [2, 3]
        assert reader.batches(5) == []


async def test_an_empty_log_has_no_positions(journal):
    """First and last position are 0."""
    with journal.reader() as reader:
        assert (reader.first(), reader.last(), reader.batches(0), list(reader.scan())) == (0, 0, [], [])
        assert reader.source(1) is None


async def test_events_newest_first_by_kind_time_and_request(journal, log):
    """Filters work alone and together, across batches."""
    await log(1, transfer_failure("a", time_ns=10), deferral_start("b", time_ns=20))
    await log(2, transfer_failure("b", time_ns=30), transfer_failure("c", remote_request_id="a", time_ns=40))
    with journal.reader() as reader:
        assert pairs(reader.scan()) == [(2, 1), (2, 0), (1, 1), (1, 0)]
        assert pairs(reader.scan(limit=3)) == [(2, 1), (2, 0), (1, 1)]
        assert pairs(reader.scan(kinds=["deferral_start"])) == [(1, 1)]
        assert pairs(reader.scan(kinds=["transfer_failure"], limit=2)) == [(2, 1), (2, 0)]
        assert pairs(reader.scan(since_unix_nano=30)) == [(2, 1), (2, 0)]
        assert pairs(reader.scan(request_id="a")) == [(2, 1), (1, 0)]
        assert pairs(reader.scan(request_id="a", limit=1)) == [(2, 1)]
        assert pairs(reader.scan(request_id="b", kinds=["transfer_failure"], since_unix_nano=25)) == [(2, 0)]
        with pytest.raises(KeyError, match="explosion"):
            list(reader.scan(kinds=["explosion"]))


async def test_events_up_to_a_batch(journal, log):
    """What came later is not read; neither where a request is asked for."""
    for seq in range(1, 4):
        await log(seq, transfer_failure("a", time_ns=10 * seq))
    with journal.reader() as reader:
        assert pairs(reader.scan(until=2)) == [(2, 0), (1, 0)]
        assert pairs(reader.scan(until=2, limit=1)) == [(2, 0)]
        assert pairs(reader.scan(until=2, since_unix_nano=20)) == [(2, 0)]
        assert pairs(reader.scan(until=2, request_id="a")) == [(2, 0), (1, 0)]
        assert pairs(reader.scan(until=0)) == []
        received = [reader.batch(number).received_unix_nano for number in (1, 2, 3)]
        assert [reader.last_until(time) for time in received] == [1, 2, 3]
        assert (reader.last_until(received[0] - 1), reader.last_until(2**64)) == (0, 3)
        (row,) = reader.source_rows()
        epoch = row.source.epoch
        assert [reader.newest_of(epoch, after, 2, 10) for after in (0, 1, 2)] == [2, 2, 0]
        assert (reader.newest_of(epoch + 1, 0, 3, 10), reader.newest_of(epoch, 0, 3, 0)) == (0, 0)


async def test_a_source_has_when_it_opened_and_closed(journal, log):
    """It is open until it says goodbye."""
    await log(1, transfer_failure("a"))
    with journal.reader() as reader:
        (row,) = reader.source_rows()
        assert (row.closed, row.closed_unix_nano) == (False, 0)
        assert 0 < row.opened_unix_nano <= row.last_seen_unix_nano
    await log(2, goodbye=Goodbye())
    with journal.reader() as reader:
        (row,) = reader.source_rows()
        assert row.closed
        assert row.closed_unix_nano == reader.batch(2).received_unix_nano


async def test_events_of_a_newer_engine_are_found_too(journal, log):
    """An event whose body is not known has no kind, but a place."""
    await log(1, Event(time_unix_nano=1, request_id="r"))
    with journal.reader() as reader:
        assert pairs(reader.scan()) == [(1, 0)]
        assert pairs(reader.scan(request_id="r")) == [(1, 0)]


async def test_requests_are_found_by_prefix(journal, log):
    """Sorted, once each, whatever characters an id has."""
    await log(1, *(transfer_failure(name) for name in ("cmpl-1", "cmpl-2", "cmpl-%", "cmpl_", "ä", "cmpl-1")))
    await log(2, transfer_failure("cmpl-1"))
    with journal.reader() as reader:
        assert reader.find_requests("cmpl-") == ["cmpl-%", "cmpl-1", "cmpl-2"]
        assert reader.find_requests("cmpl-", limit=2) == ["cmpl-%", "cmpl-1"]
        assert reader.find_requests("ä") == ["ä"]
        assert reader.find_requests("x") == []
        assert [logged.id for logged in reader.request_batches("cmpl-1")] == [1, 2]


async def test_a_prefix_is_looked_for_in_the_newest_batches(journal, log, monkeypatch):
    """The search ends at its byte limit, or when it has enough requests."""
    for seq in range(1, 5):
        await log(seq, transfer_failure(f"r{seq}"))
    with journal.reader() as reader:
        assert reader.find_requests("r", limit=1) == ["r4"]
        size = len(reader.batches(0)[0].body)
        monkeypatch.setattr(reading, "_SEARCHED_BYTES", 2 * size)
        assert reader.find_requests("r") == ["r3", "r4"]


async def test_requests_with_equal_hashes_stay_apart(journal, log):
    """Two ids with one CRC-32: each finds only its own batch and events."""
    assert request_key("plumless") == request_key("buckeroo")
    await log(1, transfer_failure("plumless"))
    await log(2, transfer_failure("buckeroo"), transfer_failure("plumless"))
    await log(3, transfer_failure("buckeroo"))
    with journal.reader() as reader:
        assert [logged.id for logged in reader.request_batches("plumless")] == [1, 2]
        assert [logged.id for logged in reader.request_batches("buckeroo")] == [2, 3]
        assert pairs(reader.scan(request_id="buckeroo")) == [(3, 0), (2, 0)]


async def test_what_is_read_of_a_request_is_bounded(journal, log):
    """The newest batches up to the byte limit are read; the budget says whether older ones were left out."""
    for seq in range(1, 5):
        await log(seq, transfer_failure("r"), transfer_failure("buckeroo"))
    with journal.reader() as reader:
        size = len(reader.batches(0)[0].body)
        for left, found in ((1, [4]), (2 * size, [3, 4]), (4 * size, [1, 2, 3, 4])):
            allowance = ReadBudget(left)
            assert [logged.id for logged in reader.request_batches("r", allowance=allowance)] == found
            assert allowance.cut is (len(found) < 4)
        # One whose id only has the same hash costs as much.
        allowance = ReadBudget(2 * size)
        assert reader.request_batches("plumless", allowance=allowance) == []
        assert allowance.cut


@pytest.mark.parametrize("request_id", ["", "r"])
async def test_what_a_scan_reads_is_bounded(journal, log, request_id):
    """Scans by kind and by request end at the limit; a scan that ends before it is not marked as cut."""
    for seq in range(1, 4):
        await log(seq, transfer_failure("r"))
    with journal.reader() as reader:
        size = len(reader.batches(0)[0].body)
        allowance = ReadBudget(2 * size)
        assert pairs(reader.scan(request_id=request_id, allowance=allowance)) == [(3, 0), (2, 0)]
        assert allowance.cut
        allowance = ReadBudget(3 * size)
        assert len(pairs(reader.scan(request_id=request_id, allowance=allowance))) == 3
        assert not allowance.cut


async def test_a_step_of_a_question_has_its_time(journal, log):
    """Time in each batch counts against the query's time limit, however small the batch is."""
    for seq in range(1, 4):
        await log(seq, transfer_failure("r"))
    seconds = iter([0.0, 1.0, 1.9, 2.0])
    allowance = ReadBudget(seconds=2.0, clock=lambda: next(seconds), untimed=0)
    with journal.reader() as reader:
        assert pairs(reader.scan(allowance=allowance)) == [(3, 0), (2, 0)]
    assert allowance.cut


async def test_a_process_without_a_turn_reads_a_small_log(journal, log):
    """Time ends no query that has read little, however much of it has passed."""
    for seq in range(1, 4):
        await log(seq, transfer_failure("r"))
    seconds = iter([0.0, 0.0])
    allowance = ReadBudget(seconds=2.0, clock=lambda: next(seconds, 100.0))
    late = ReadBudget(1_000, 2.0, clock=lambda: next(seconds, 100.0), untimed=100)
    with journal.reader() as reader:
        assert len(pairs(reader.scan(allowance=allowance))) == 3
    assert not allowance.cut
    late.consume(99)
    assert not late.ends
    late.consume(1)
    assert late.ends


async def test_nothing_is_read_once_the_agent_stops(journal, log):
    """A query in progress ends when the agent stops."""
    for seq in range(1, 4):
        await log(seq, transfer_failure("r"))
    stopping = threading.Event()
    with journal.reader(stopping.is_set) as reader:
        found = reader.scan()
        next(found)
        stopping.set()
        for question in (
            lambda: next(found),
            lambda: reader.request_batches("r"),
            lambda: reader.find_requests("r"),
        ):
            with pytest.raises(ImpossibleError, match="the agent is stopping"):
                question()


async def test_a_reader_sees_what_is_committed_when_it_asks(journal, log):
    """A reader opened before a commit sees the commit."""
    with journal.reader() as reader:
        assert reader.last() == 0
        await log(1)
        assert reader.last() == 1


async def test_a_scan_reads_no_further_than_it_is_asked(journal, log):
    """Yields newest first over several kinds; the caller may stop and close the reader."""
    for seq in range(1, 5):
        await log(seq, transfer_failure(f"f{seq}"), deferral_start(f"d{seq}"))
    with journal.reader() as reader:
        found = reader.scan(kinds=["deferral_start", "transfer_failure"], limit=100)
        assert pairs([next(found), next(found), next(found)]) == [(4, 1), (4, 0), (3, 1)]
        everything = list(reader.scan(limit=100))
        assert pairs(everything) == pairs(reader.scan(limit=100))
        assert len(list(reader.scan(limit=3))) == 3
    found.close()
