"""What is read in columns is what the events say one by one."""

from __future__ import annotations

import gc
from operator import attrgetter
from unittest.mock import patch
from weakref import ref
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.batch import columns
from penstock.agent.batch.columns import FEW, BatchColumns
from penstock.agent.batch.rows import typed_events
from penstock.agent.batch.transposed_events import TRANSPOSED, transposed_events
from penstock.agent.ingest.message_limits import event_sizes
from penstock.agent.journal.index.disk_format import (
    KIND_NUMBERS,
    event_request_ids,
    kind_rows,
    request_ids,
    request_keys,
)
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import (
    TIME,
    add_transfers,
    deferral_end,
    deferral_start,
    event,
    transfer_failure,
)

_TIMES = st.sampled_from([0, 1, TIME, 2**64 - 1])
_IDS = st.sampled_from(["", "a", "b", "ü" * 300])
_PEERS = st.sampled_from(["", "p:1", "p:2"])
_NUMBERS = st.sampled_from([0, 1, 2, 99, -1])
_EVENTS = st.one_of(
    st.builds(
        lambda name, peer, time, reason, remote: deferral_start(
            name, peer=peer, time_ns=time, reason=reason, remote_request_id=remote
        ),
        _IDS, _PEERS, _TIMES, _NUMBERS, _IDS,
    ),
    st.builds(
        lambda name, peer, time, start, reason, ending: deferral_end(
            name, peer=peer, time_ns=time, start_ns=start, reason=reason, ending=ending
        ),
        _IDS, _PEERS, _TIMES, _TIMES, _NUMBERS, _NUMBERS,
    ),
    st.builds(
        lambda name, time, remote, external: event(
            "request_closed", name, time_ns=time, remote_request_id=remote, external_request_id=external
        ),
        _IDS, _TIMES, _IDS, _IDS,
    ),
    st.builds(lambda name, remote: transfer_failure(name, remote_request_id=remote), _IDS, _IDS),
    st.builds(lambda waiting: event("handshake", waiting_request_ids=waiting), st.lists(_IDS, max_size=3)),
    st.builds(lambda time, name: Event(time_unix_nano=time, request_id=name), _TIMES, _IDS),
)  # fmt: skip
_BATCHES = st.builds(
    lambda events, sampled: add_transfers(Batch(events=events), sampled),
    st.lists(_EVENTS, max_size=12),
    st.lists(_IDS, max_size=3),
)


def contents_of(batch, few):
    """Read *batch* in columns if it has *few* events."""
    with patch.object(columns, "FEW", few):
        contents = BatchColumns(batch, batch.SerializeToString())
        assert contents.groups is not None
    return contents


@pytest.mark.parametrize("few", [1, FEW, 1_000])
@settings(deadline=None)
@given(_BATCHES)
def test_columns_are_what_the_events_say(few, batch):
    """Of every kind and field that there are columns of, whatever is left out because it is 0 or empty."""
    contents = contents_of(batch, few)
    rows = typed_events(batch)
    assert list(contents.groups) == list(dict.fromkeys(kind for kind, _ in rows))
    assert contents.in_order(contents.groups) == rows
    for kind, group in contents.groups.items():
        of_kind = [each for name, each in rows if name == kind]
        assert list(group.events) == of_kind
        assert list(group.times) == [each.time_unix_nano for each in of_kind]
        assert list(group.request_ids) == [each.request_id for each in of_kind]
        for path in [path for name, path in TRANSPOSED if name == kind]:
            expected = [attrgetter(f"{kind}.{path}")(each) for each in of_kind]
            assert list(group.values(path)) in (expected, list(filter(None, expected)))
            assert list(group.column(path)) == expected


@pytest.mark.parametrize("few", [1, FEW])
@settings(deadline=None)
@given(_BATCHES)
def test_indexes_are_what_the_events_say(few, batch):
    """Kinds with their newest time, ids of requests and their keys."""
    contents = contents_of(batch, few)
    newest: dict[str, int] = {}
    for kind, each in typed_events(batch):
        newest[kind] = max(newest.get(kind, 0), each.time_unix_nano)
    assert kind_rows(contents) == [
        (KIND_NUMBERS.get(kind, 0), min(time, 2**63 - 1)) for kind, time in newest.items()
    ]
    ids = {batch.strings[index] for index in batch.transfers.request_id}.union(
        *map(event_request_ids, batch.events)
    ) - {""}
    assert request_ids(contents) == ids
    assert request_keys(contents) == {crc32(name.encode()) for name in ids}


@settings(deadline=None)
@given(_BATCHES)
def test_sizes_are_those_of_the_events(batch):
    """As protobuf itself would say, one by one."""
    assert event_sizes(batch.SerializeToString()) == [each.ByteSize() for each in batch.events]


def test_bytes_that_are_a_batch_and_no_columns():
    """A time that came as a list of three bytes is unknown in an event; the events are read one by one then."""
    body = Batch(events=[deferral_start("a", remote_request_id="b")] * FEW).SerializeToString()
    body += b"\x2a\x05\x0a\x03\x01\x02\x03"
    contents = BatchColumns(Batch.FromString(body), body)
    assert transposed_events(body) is None
    assert request_ids(contents) == {"a", "b"}
    assert [list(group.times) for group in contents.groups.values()] == [[TIME] * FEW, [0]]


def test_columns_are_made_for_many_events_only():
    """Of a few, parsing the bytes again costs more than it saves."""
    for number in (1, FEW - 1, FEW):
        batch = Batch(events=[deferral_start("a", remote_request_id="b")] * number)
        with patch.object(columns, "transposed_events", wraps=transposed_events) as made:
            BatchColumns(batch, batch.SerializeToString()).groups  # noqa: B018
        assert made.called is (number >= FEW)


def test_contents_go_with_their_last_reference():
    """Without a garbage collection: megabytes go through here each second."""
    batch = Batch(events=[deferral_start("a"), event("request_closed", "a")])
    contents = BatchColumns(batch, batch.SerializeToString())
    request_keys(contents)
    watched = ref(contents.groups["request_closed"])
    enabled = gc.isenabled()
    gc.disable()
    try:
        del contents
        assert watched() is None
    finally:
        if enabled:
            gc.enable()
