"""What a message may be, as a table; and bytes that are no message."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.internal import encoder, wire_format
from hypothesis import example, given, settings
from hypothesis import strategies as st
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.errors import ContractError
from penstock.agent.ingest import message_limits
from penstock.agent.ingest.message_limits import check_batch, check_hello, parse_message
from penstock.agent.prescan import count_entries
from penstock.proto.v1.common_pb2 import DEFERRAL_ENDING_ENGINE_LOST, PROBE_RESULT_HIT
from penstock.proto.v1.events_pb2 import Event, Forgotten, SourceLost
from penstock.proto.v1.ingest_pb2 import Batch, Drop, GuardError, Hello, Tombstone
from penstock.proto.v1.samples_pb2 import ProbeSamples, TransferSamples
from penstock.proto.v1.snapshot_pb2 import EngineFacts, Hook, Snapshot

from tests.support.agent.batches import deferral_end, sample_batch, transfer_failure

DESCRIPTOR: Any = Batch.DESCRIPTOR


def samples(count: int = 1, **columns: list[int]) -> Batch:
    """Build a batch of *count* transfers with some columns replaced."""
    batch = sample_batch([f"r{n}" for n in range(count)], epoch=1, seq=1)
    for name, values in columns.items():
        getattr(batch.transfers, name)[:] = values
    return batch


TAKEN = [
    Batch(epoch=1, seq=1),
    Batch(epoch=1, seq=2**63, events=[transfer_failure("r" * message_limits.MAX_TEXT, error_text="x" * message_limits.MAX_TEXT)]),
    Batch(epoch=1, seq=1, events=[Event()] * message_limits.MAX_EVENTS),
    Batch(epoch=1, seq=1, strings=["", "x" * message_limits.MAX_NAME]),
    Batch(epoch=1, seq=1, drops=[Drop(count=1)] * message_limits.MAX_COUNTS),
    Batch(epoch=1, hello=Hello(), snapshot=Snapshot()),
    Batch(epoch=1, snapshot=Snapshot(hooks=[Hook(name="n", reason="x" * 2000)] * 300)),
    samples(message_limits.MAX_SAMPLES - 4),
    samples(result=[99]),
    Batch(epoch=1, seq=1, strings=[""], probes=ProbeSamples(
        end_time_unix_nano=[1], duration_nano=[1], result=[PROBE_RESULT_HIT], connector=[0], peer=[0], request_id=[0])),
]  # fmt: skip

REFUSED = [
    (Batch(seq=1), "epoch is 0; draw a random one"),
    (Batch(epoch=1, events=[Event()]), "events came without a sequence number; only hello and snapshot may"),
    (Batch(epoch=1, seq=1, hello=Hello()), "batch 1 holds a hello or a snapshot; those are sent with seq 0"),
    (Batch(epoch=1, seq=1, snapshot=Snapshot()), "batch 1 holds a hello or a snapshot"),
    (Batch(epoch=1, seq=1, events=[Event()] * (message_limits.MAX_EVENTS + 1)), "events has 4097 entries, at most 4096"),
    (Batch(epoch=1, seq=1, drops=[Drop(count=1)] * 513), "drops has 513 entries, at most 512"),
    (Batch(epoch=1, seq=1, guard_errors=[GuardError(count=1)] * 513), "guard_errors has 513 entries"),
    (Batch(epoch=1, seq=1, tombstone=Tombstone(lost=[Drop(count=1)] * 513)), "tombstone.lost has 513 entries"),
    (Batch(epoch=1, seq=1, strings=["", "x" * 1025]), "strings has a text of 1025 characters, at most 1024"),
    (Batch(epoch=1, seq=1, drops=[Drop(reason="x" * 5000)]), "counts.reason has a text of 5000 characters"),
    (Batch(epoch=1, seq=1, events=[transfer_failure("x" * 4097)]), "events.request_id has a text of 4097 characters"),
    (Batch(epoch=1, seq=1, events=[transfer_failure("r", peer="x" * 5000)]), "events.transfer_failure.peer.address has a text"),
    (Batch(epoch=1, seq=1, events=[Event(handshake={"waiting_request_ids": ["a", "x" * 5000]})]), "events.handshake.waiting_request_ids has a text"),
    (Batch(epoch=1, seq=1, events=[Event(source_lost=SourceLost())]), "events.source_lost is the agent's own"),
    (Batch(epoch=1, seq=1, events=[Event(forgotten=Forgotten())]), "events.forgotten is the agent's own"),
    (Batch(epoch=1, seq=1, events=[deferral_end("r", ending=DEFERRAL_ENDING_ENGINE_LOST)]), "engine_lost is the agent's own word"),
    (samples(2, end_uncertainty_nano=[1]), "transfers.end_uncertainty_nano has 1 entries, transfers.end_time_unix_nano 2"),
    (samples(2, bytes=[1]), "transfers.bytes has 1 entries, transfers.end_time_unix_nano 2; all columns are equally long"),
    (samples(1, end_time_unix_nano=[]), "transfers.duration_nano has 1 entries, transfers.end_time_unix_nano 0"),
    (samples(1, peer=[5]), "transfers.peer has index 5, the string table has 5 entries"),
    (samples(1, request_id=[2**32 - 1]), "transfers.request_id has index 4294967295"),
    (Batch(epoch=1, seq=1, probes=ProbeSamples(end_time_unix_nano=[1])), "probes.duration_nano has 0 entries"),
    (Batch(epoch=1, seq=1, strings=["x"], probes=ProbeSamples(end_time_unix_nano=[1], duration_nano=[1], result=[PROBE_RESULT_HIT], connector=[0], peer=[0], request_id=[0])), "strings[0] is 'x'; it is always empty"),
    (Batch(epoch=1, seq=1, transfers=TransferSamples(end_time_unix_nano=[1] * 16385)), "transfers has 16385 entries, at most 16384"),
    (Batch(epoch=1, snapshot=Snapshot(hooks=[Hook()] * 8193)), "snapshot.hooks has 8193 entries, at most 8192"),
    (Batch(epoch=1, snapshot=Snapshot(queue={"requests": [{}] * 1025})), "snapshot.queue.requests has 1025 entries, at most 1024"),
    (Batch(epoch=1, snapshot=Snapshot(queue={"waiting": [{}] * 513})), "snapshot.queue.waiting has 513 entries, at most 512"),
    (Batch(epoch=1, snapshot=Snapshot(queue={"requests": [{"request_id": "x" * 5000}]})), "snapshot.queue.requests.request_id has a text of 5000"),
    (Batch(epoch=1, snapshot=Snapshot(hooks=[Hook(reason="x" * 5000)])), "snapshot.hooks.reason has a text of 5000"),
    (Batch(epoch=1, snapshot=Snapshot(engine=EngineFacts(labels={str(n): "" for n in range(65)}))), "snapshot.engine.labels has 65 entries, at most 64"),
]  # fmt: skip


@pytest.mark.parametrize("batch", TAKEN)
def test_what_is_within_the_limits_is_taken(batch):
    """At each limit, and values that only a newer engine knows."""
    body = batch.SerializeToString()
    check_batch(BatchColumns(parse_message(body), body), body)


@pytest.mark.parametrize(("batch", "sentence"), REFUSED)
def test_what_is_beyond_a_limit_is_refused_with_a_sentence(batch, sentence):
    """It names the field, its value and the limit."""
    body = batch.SerializeToString()
    with pytest.raises(ContractError) as caught:
        check_batch(BatchColumns(parse_message(body), body), body)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("hello", "sentence"),
    [
        (Hello(process="api"), "hello.schema_version is 0, this agent knows 1 to 1; upgrade the agent"),
        (Hello(process="api", schema_version=2), "hello.schema_version is 2"),
        (Hello(schema_version=1), "hello.process is empty; it is one of api, engine-core, worker"),
        (Hello(schema_version=1, process="agent"), "hello.process is agent: that is this agent"),
        (Hello(schema_version=1, process="api", labels={str(n): "" for n in range(65)}), "hello.labels has 65 entries"),
        (Hello(schema_version=1, process="api", labels={"a": "x" * 1025}), "hello.labels has a text of 1025"),
        (Hello(schema_version=1, process="api", labels={"x" * 1025: "a"}), "hello.labels has a text of 1025"),
        (Hello(schema_version=1, process="api", secret=b"x" * 65), "hello.secret has 65 bytes, at most 64 are taken; draw 16"),
        (Hello(schema_version=1, process="x" * 5000), "hello.process has a text of 5000"),
        (Hello(schema_version=1, process="api", labels={str(n): "x" * 200 for n in range(50)}), "at most 8192 are taken; give the engine fewer or shorter labels"),
    ],
)  # fmt: skip
def test_a_hello_is_checked(hello, sentence):
    """Version, process and labels."""
    with pytest.raises(ContractError) as caught:
        check_hello(hello)
    assert sentence in str(caught.value)


def inside(field: int, content: bytes) -> bytes:
    """Return *content* as the submessage in field number *field*."""
    return (
        encoder.TagBytes(field, wire_format.WIRETYPE_LENGTH_DELIMITED)
        + encoder._VarintBytes(len(content))  # type: ignore[attr-defined]  # the stubs leave it out
        + content
    )


BOMBS = [
    inside(5, b"") * 500_000,  # events
    inside(8, b"") * 500_000,  # strings
    inside(9, b"") * 500_000,  # drops
    inside(4, inside(2, b"") * 250_000),  # snapshot { in_flight ... }
    inside(5, inside(25, inside(9, b"") * 250_000)),  # events { eplb_rebalance { layers ... } }
    b"\x08\x01" * 500_000,  # a scalar, again and again
]


@pytest.mark.parametrize("body", BOMBS)
def test_a_bomb_is_refused_before_it_is_parsed(body):
    """Hundreds of thousands of tiny entries: no memory is spent on them."""
    tracemalloc.start()
    try:
        with pytest.raises(ContractError, match="the message holds more than 32768 entries"):
            parse_message(body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"\0" * ((1 << 20) + 1), "the message has 1048577 bytes, at most 1048576 are taken"),
        (b"\xff", "is not a penstock.v1.Batch"),
        (b"\x42\x02\xff\xfe", "is not a penstock.v1.Batch"),
        (b"\x2a\x05a", "is not a penstock.v1.Batch"),
    ],
)
def test_bytes_that_are_no_batch(body, sentence):
    """Too many, cut off, not UTF-8."""
    with pytest.raises(ContractError) as caught:
        parse_message(body)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"\x80" * 11, "a number does not end"),
        (b"\x80", "a number does not end"),
        (b"\x2a\x05a", "a field is longer than what holds it"),
        (b"\x09a", "a field is longer than what holds it"),
        (b"\x0b", "wire type 3 is not used"),
        (b"\x2a\x01\x80", "a number does not end"),
    ],
)
def test_the_scan_refuses_bytes_that_are_no_message(body, sentence):
    """At the top and inside."""
    with pytest.raises(ContractError, match=sentence):
        count_entries(body, DESCRIPTOR, 10)


def test_the_scan_counts_at_all_depths():
    """Events, what is in them, strings and the messages of samples."""
    batch = samples(2)
    batch.events.append(Event(request_id="r", eplb_rebalance={"layers": [{"layer": 1}, {}], "model": "m"}))
    # 6 strings, transfers; its 14 packed columns are no entries; event, id, rebalance, 2 layers, model.
    assert count_entries(batch.SerializeToString(), DESCRIPTOR, 100) == 6 + 1 + 6


@settings(deadline=None)
@given(st.binary(max_size=400))
@example(b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
def test_any_bytes_are_parsed_or_refused(body):
    """Nothing but a ContractError comes out, of the scan and of the checks."""
    with suppress(ContractError):
        assert count_entries(body, DESCRIPTOR, 50) <= 50
    with suppress(ContractError):
        batch = parse_message(body)
        check_batch(BatchColumns(batch, body), body)
        assert batch.epoch


@settings(deadline=None)
@given(st.data())
def test_a_message_that_was_cut_or_changed_is_parsed_or_refused(data):
    """One byte of a good message is wrong, or its end is missing."""
    body = bytearray(
        samples(3).SerializeToString() + Batch(events=[transfer_failure("r")]).SerializeToString()
    )
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    with suppress(ContractError):
        batch = parse_message(cut)
        check_batch(BatchColumns(batch, cut), cut)
        assert all(index < len(batch.strings) for index in batch.transfers.peer)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                1,
                900,
                message_limits.MAX_NAME,
                message_limits.MAX_NAME + 1,
                message_limits.MAX_TEXT,
                message_limits.MAX_TEXT + 1,
            ]
        ),
        max_size=6,
    ),
    st.sampled_from(["request_id", "error_text"]),
    st.sampled_from("aü"),
)
def test_a_text_that_is_too_long_is_found_wherever_it_is(lengths, field, letter):
    """Among events of all sizes: exactly those batches are refused that hold one, in characters and not in bytes."""
    events = []
    for length in lengths:
        entry = transfer_failure("r", error_text="x")
        setattr(entry if field == "request_id" else entry.transfer_failure, field, letter * length)
        events.append(entry)
    batch = Batch(epoch=1, seq=1, events=events)
    body = batch.SerializeToString()
    if max(lengths, default=0) <= message_limits.MAX_TEXT:
        check_batch(BatchColumns(batch, body), body)
    else:
        with pytest.raises(ContractError, match=f"has a text of {message_limits.MAX_TEXT + 1} characters"):
            check_batch(BatchColumns(batch, body), body)
