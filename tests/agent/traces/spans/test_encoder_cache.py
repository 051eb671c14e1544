"""Spans and explanations of a request's encoder outputs."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.traces.assembly.assembler import Assembler
from penstock.agent.traces.query.explain import explain_request
from penstock.agent.traces.spans import semconv
from penstock.proto.v1 import common_pb2

from tests.support.agent.batches import PEER, TIME, transfer_failure
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    MS,
    SECOND,
    SOURCES,
    Log,
    closed,
    outcome,
    probe,
    sample,
)

ITEMS = ("4f1d" * 16, "9c20" * 16)
HIT, MISS, ERROR = (
    common_pb2.PROBE_RESULT_HIT,
    common_pb2.PROBE_RESULT_MISS,
    common_pb2.PROBE_RESULT_ERROR,
)


def lost(item, **body):
    """Build a transfer that broke off at 40 ms."""
    fields = {
        "channel": common_pb2.CHANNEL_EC,
        "connector": "ZmqECConnector",
        "mode": common_pb2.FAILURE_MODE_TRANSFER,
        "error_type": common_pb2.ERROR_TYPE_TIMEOUT,
        "error_text": "nothing came for 0.5 s",
        "item": item,
        "start_time_unix_nano": TIME + 8 * MS,
    }
    return transfer_failure(DECODE, time_ns=TIME + 40 * MS, **{**fields, **body})


def came(**fields):
    """Build a good transfer of an encoder output."""
    values = {"channel": common_pb2.CHANNEL_EC, "connector": "ZmqECConnector", "bytes": 4096}
    return sample(DECODE, **{**values, **fields})


def decided(**body):
    """Build the outcome."""
    fields = {
        "channel": common_pb2.CHANNEL_EC,
        "mode": common_pb2.FAILURE_MODE_TRANSFER,
        "error_type": common_pb2.ERROR_TYPE_TIMEOUT,
        "items_recomputed": 2,
        "tokens_recomputed": 32,
    }
    return outcome(DECODE, **{**fields, **body})


def spans_of(*entries):
    """Assemble *entries* of the decode engine and return the spans by name."""
    log = Log()
    log.tell((DECODE_CORE, entry) for entry in (*entries, closed(DECODE)))
    assembler = Assembler(SOURCES.get)
    finished = [item for logged in log.batches for item in assembler.apply(logged)]
    finished += assembler.advance(log.now + 60 * SECOND)
    found: dict[str, list[Any]] = {}
    for item in finished:
        for span in item.spans:
            found.setdefault(span.name, []).append(span)
    return found


async def sentences(book, *entries):
    """Explain *entries*."""
    await book.append([(DECODE_WORKER, entry) for entry in entries], [(DECODE_CORE, closed(DECODE))])
    with book.journal.reader() as reader:
        return list(explain_request(reader, DECODE).sentences)


def test_a_good_load_is_probe_and_transfer():
    """A load has a probe span and a transfer span below the request, with the peer."""
    found = spans_of(probe(DECODE), came())

    (request,), (asked,), (load,) = (
        found[name] for name in (semconv.REQUEST, semconv.EC_PROBE, semconv.EC_LOAD)
    )
    assert (asked.start_unix_nano, asked.end_unix_nano) == (TIME + 6 * MS, TIME + 8 * MS)
    assert asked.attributes[semconv.PROBE_RESULT] == "hit"
    assert asked.attributes[semconv.CONNECTOR] == "ZmqECConnector"
    assert (asked.client, asked.error) == (True, None)
    assert load.attributes[semconv.BYTES] == 4096
    for span in (asked, load):
        assert (span.parent_span_id, span.attributes[semconv.PEER]) == (request.span_id, PEER)
    assert request.attributes[semconv.PEER] == PEER
    assert not request.error


def test_probes_of_one_moment_are_spans_of_their_own():
    """Two items asked for in one message have the same times and peer; their ids differ."""
    found = spans_of(probe(DECODE), probe(DECODE), probe(DECODE, MISS))

    assert [span.attributes[semconv.PROBE_RESULT] for span in found[semconv.EC_PROBE]] == [
        "hit",
        "hit",
        "miss",
    ]
    assert len({span.span_id for span in found[semconv.EC_PROBE]}) == 3


def test_a_failed_probe_is_one_span():
    """A failed probe's sample and event are one span with the event's text; another peer's is another span."""
    failed = lost(ITEMS[0], mode=common_pb2.FAILURE_MODE_PROBE, error_text="no answer in 0.1 s")
    found = spans_of(probe(DECODE, ERROR), failed, probe(DECODE, ERROR, peer="10.0.0.9:5600"))

    by_peer = {span.attributes[semconv.PEER]: span for span in found[semconv.EC_PROBE]}
    assert by_peer[PEER].error == "probe timeout: no answer in 0.1 s"
    assert by_peer[PEER].attributes[semconv.ITEMS] == (ITEMS[0],)
    assert by_peer["10.0.0.9:5600"].error == "the probe failed"
    assert semconv.EC_LOAD not in found


def test_a_recomputation_names_the_items():
    """Probe, failed load and local encoding are spans of one request; the encoding has the items."""
    found = spans_of(probe(DECODE), *(lost(item) for item in ITEMS), decided())

    (load,), (again,) = found[semconv.EC_LOAD], found[semconv.RECOMPUTE]
    assert load.attributes[semconv.ITEMS] == ITEMS
    assert load.error == "transfer timeout: nothing came for 0.5 s"
    assert load.start_unix_nano == TIME + 8 * MS
    assert again.attributes[semconv.ITEMS_RECOMPUTED] == 2
    assert again.attributes[semconv.CHANNEL] == "ec"


async def test_a_failed_load_is_explained(book):
    """The sentence has item, peer, cause, action and cost."""
    (sentence,) = await sentences(book, probe(DECODE), lost(ITEMS[0]), decided())

    assert f"could not load its EC state (item {ITEMS[0][:12]}) from {PEER}" in sentence
    assert "(transfer, timeout: nothing came for 0.5 s)" in sentence
    assert (
        "2 items were encoded here, 32 tokens were computed again, 12 were kept, decided by policy"
        in sentence
    )


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"tokens_recomputed": 0, "items_recomputed": 1},
            ": 1 item was encoded here, decided by policy",
        ),
        (
            {"kind": common_pb2.OUTCOME_FAILED, "tokens_recomputed": 0, "items_recomputed": 2},
            "the request was failed, 2 items not encoded, decided by policy",
        ),
        (
            {"kind": common_pb2.OUTCOME_FAILED, "decided_by": common_pb2.DECIDED_BY_VLLM, "policy_hash": ""},
            "and 32 tokens not recomputed, decided by the connector's own configuration under no policy",
        ),
    ],
)
async def test_what_was_done_is_explained(book, fields, told):
    """A failure before any computation costs the encoding only; no vLLM setting is named."""
    (sentence,) = await sentences(book, probe(DECODE), lost(ITEMS[0]), decided(**fields))

    assert told in sentence


@pytest.mark.parametrize(
    ("count", "told"), [(2, "items 0000, 0001"), (7, "items 0000, 0001, 0002, 0003 and 3 more")]
)
async def test_many_items_are_counted(book, count, told):
    """The sentence has the first few items and the number of the others."""
    (sentence,) = await sentences(book, *(lost(f"{n:04}") for n in range(count)))

    assert f"({told})" in sentence


async def test_a_miss_is_explained(book):
    """The explanation of a local encoding names the peers that lack the item."""
    (sentence,) = await sentences(book, probe(DECODE, MISS), probe(DECODE, MISS))

    assert (
        f"asked {PEER} for 2 encoder outputs that were not there and computed 412 prompt tokens" in sentence
    )
