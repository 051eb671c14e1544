"""Exemplars: the newest span of each place, bounded, never too long."""

from __future__ import annotations

import threading

from penstock.agent.batch.rows import transfer_rows
from penstock.agent.metrics.catalogue import from_log
from penstock.agent.metrics.gatherer import Exemplars
from penstock.agent.model import EngineKey
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_OK

from tests.support.agent.batches import PEER, TIME, event, transfer_failure
from tests.support.agent.metric_logs import SECOND, source, transfers

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FAILURE = ("kv", "NixlConnector", "handshake", "refused", PEER, "false")
ENGINE = EngineKey("", "0")


def test_a_failure_keeps_its_newest_span() -> None:
    """An older entry, exported late, does not take the place of a newer one."""
    exemplars = Exemplars()
    exemplars.note(source(), transfer_failure("new", time_ns=TIME + 1), TRACE, SPAN)
    exemplars.note(source(), transfer_failure("old"), "f" * 32, SPAN)
    held = exemplars.get(ENGINE, from_log.TRANSFER_FAILURES, FAILURE)
    assert held is not None
    assert (held.trace_id, held.span_id, held.value, held.time_unix_nano) == (TRACE, SPAN, 1, TIME + 1)
    assert exemplars.get(EngineKey("", "1"), from_log.TRANSFER_FAILURES, FAILURE) is None


def test_a_transfer_marks_the_bucket_it_falls_into() -> None:
    """A bucket's exemplar is a value of that bucket: 30 ms in the one up to 50 ms."""
    exemplars = Exemplars()
    (sample,) = transfer_rows(transfers([(30_000_000, 1 << 20, PEER, TRANSFER_RESULT_OK)]))
    exemplars.note(source(), sample, TRACE, SPAN)
    buckets = range(len(from_log.TRANSFER_DURATION.buckets) + 1)
    held = [
        bucket
        for bucket in buckets
        if exemplars.get(ENGINE, from_log.TRANSFER_DURATION, ("kv", PEER), bucket)
    ]
    assert [from_log.TRANSFER_DURATION.buckets[bucket] for bucket in held] == [50_000_000]


def test_a_value_beyond_all_buckets_marks_infinity() -> None:
    """The last bucket has an exemplar too."""
    exemplars = Exemplars()
    late = event(
        "deferral_end", "r", time_ns=TIME + 700 * SECOND, reason=2, ending=1, start_time_unix_nano=TIME
    )
    exemplars.note(source(), late, TRACE, SPAN)
    assert (
        exemplars.get(ENGINE, from_log.DEFERRED_TIME, ("remote_kv",), len(from_log.DEFERRED_TIME.buckets))
        is not None
    )


def test_ids_longer_than_openmetrics_allows_are_left_out() -> None:
    """One scrape with an exemplar of 129 characters would be refused as a whole."""
    exemplars = Exemplars()
    exemplars.note(source(), transfer_failure("r"), "a" * 99, SPAN)
    assert exemplars.get(ENGINE, from_log.TRANSFER_FAILURES, FAILURE) is None
    exemplars.note(source(), transfer_failure("r"), "a" * 97, SPAN)
    assert exemplars.get(ENGINE, from_log.TRANSFER_FAILURES, FAILURE) is not None


def test_places_are_bounded() -> None:
    """The place noted longest ago goes first."""
    exemplars = Exemplars(capacity=2)
    for peer in ("a", "b", "c"):
        exemplars.note(source(), transfer_failure("r", peer=peer), TRACE, SPAN)
    held = [
        exemplars.get(ENGINE, from_log.TRANSFER_FAILURES, (*FAILURE[:4], peer, "false")) is not None
        for peer in ("a", "b", "c")
    ]
    assert held == [False, True, True]


def test_noting_from_many_threads() -> None:
    """The trace export notes while a scrape reads."""
    exemplars = Exemplars(capacity=8)
    start = threading.Barrier(4)
    finished: list[int] = []

    def work(number: int) -> None:
        start.wait(60)
        for step in range(300):
            peer = f"{number}-{step % 16}"
            exemplars.note(source(), transfer_failure("r", peer=peer), TRACE, SPAN)
            exemplars.get(ENGINE, from_log.TRANSFER_FAILURES, (*FAILURE[:4], peer, "false"))
        finished.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(finished) == [0, 1, 2, 3]
