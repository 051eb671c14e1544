"""From tuples to batches: nothing is lost silently, nothing is too large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.instrumentation.core import constants
from penstock.instrumentation.core.guard import DropCounter
from penstock.instrumentation.telemetry import encoder, records
from penstock.instrumentation.telemetry.encoder import cut_text, frame, seal
from penstock.instrumentation.telemetry.outbox import Sealed
from penstock.proto.v1 import common_pb2, events_pb2, snapshot_pb2
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.samples_pb2 import ProbeSamples, TransferSamples

from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

TIME = 1_750_000_000_000_000_000


def event(kind: str = "transfer_failure", fields: Any = None, request_id: Any = "r", **other: Any) -> Any:
    """Build an event's tuple."""
    return (TIME, kind, {} if fields is None else fields, other.get("component", 1), 0, request_id, False)


def transfer(request_id: str = "r", size: Any = 1, connector: Any = "NixlConnector") -> Any:
    """Build a transfer's tuple."""
    return (TIME, 5, size, 2, 1, 0, 1, 1, 1, 2, 0, connector, "10.0.0.7:5600", "engine-a", request_id)


def batches(sealed: Sequence[Sealed]) -> list[Batch]:
    """Parse what goes over the wire."""
    return [Batch.FromString(frame(7, index + 1, one)) for index, one in enumerate(sealed)]


def test_event_fields() -> None:
    """Every field of an event's head and body arrives, nested messages and lists included."""
    fields = {
        "peer": {"address": "10.0.0.7:5600", "engine_id": "e", "rank": 3},
        "mode": constants.FAILURE_MODE_HANDSHAKE,
        "incompatibility": {"local_hash": "a", "remote_hash": "b", "factors": ("x", "y")},
        "blocks": 0,
    }
    record = (TIME, "transfer_failure", fields, constants.COMPONENT_WORKER, 4, "req", True)
    drops = DropCounter()
    (found,) = batches(seal([record], [], [], drops))
    (got,) = found.events
    assert (got.time_unix_nano, got.component, got.rank, got.request_id, got.rehearsal) == (
        TIME,
        2,
        4,
        "req",
        True,
    )
    failure = got.transfer_failure
    assert (failure.peer.address, failure.peer.rank, failure.mode) == ("10.0.0.7:5600", 3, 1)
    assert list(failure.incompatibility.factors) == ["x", "y"]
    assert failure.HasField("blocks")
    assert not drops


def test_columns_share_one_string_table() -> None:
    """Text of transfers and probes is an index into one table whose first entry is empty."""
    probes = [(TIME, 3, 1, "ZmqECConnector", "", "r-2")]
    (found,) = batches(seal([], [transfer("r-1"), transfer("r-2")], probes, DropCounter()))
    table = found.strings
    assert table[0] == ""
    assert len(set(table)) == len(table)
    assert [table[index] for index in found.transfers.request_id] == ["r-1", "r-2"]
    assert [table[index] for index in found.probes.request_id] == ["r-2"]
    assert list(found.probes.peer) == [0]
    assert list(found.transfers.bytes) == [1, 1]
    assert (found.epoch, found.seq) == (7, 1)


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (event("no_such_event"), "unknown"),
        (event("source_lost"), "unknown"),
        (event(fields={"no_such_field": 1}), "transfer_failure"),
        (event(fields={"mode": "x" * 3}), "transfer_failure"),
        (event(fields={"blocks": -1}), "transfer_failure"),
        (event(fields={"peer": 5}), "transfer_failure"),
        (event(fields=7), "transfer_failure"),
        (event(request_id=None), "transfer_failure"),
        (event(component=1 << 40), "transfer_failure"),
    ],
)
def test_bad_event_is_dropped_alone(bad: Any, kind: str) -> None:
    """An event that cannot be encoded is counted; its neighbours arrive."""
    drops = DropCounter()
    (found,) = batches(seal([event(request_id="a"), bad, event(request_id="b")], [], [], drops))
    assert [item.request_id for item in found.events] == ["a", "b"]
    assert drops.drain() == {("encode_error", kind): 1}


@pytest.mark.parametrize(
    "bad", [transfer(size=-1), transfer(size=1 << 64), transfer(size="big"), transfer(connector=None), (1, 2)]
)
def test_bad_sample_is_dropped_alone(bad: Any) -> None:
    """A sample that cannot be encoded is counted; its neighbours arrive in full."""
    drops = DropCounter()
    (found,) = batches(seal([], [transfer("a"), bad, transfer("b")], [], drops))
    assert [found.strings[index] for index in found.transfers.request_id] == ["a", "b"]
    assert len(found.transfers.duration_nano) == 2
    assert drops.drain() == {("encode_error", "transfer_sample"): 1}


def test_only_bad_entries_make_no_batch() -> None:
    """Nothing to send is no batch."""
    drops = DropCounter()
    short: Any = (1, 2)
    assert seal([event("nonsense")], [short], [], drops) == []
    assert drops.drain() == {("encode_error", "unknown"): 1, ("encode_error", "transfer_sample"): 1}


def test_large_batch_is_split() -> None:
    """Entries beyond a message's size are spread over several, in their order, none lost."""
    # About 60 KB each.
    fields = {"layers": [{"layer": 1, "recv_expert_ids": [70_000] * 5_000} for _ in range(4)]}
    events = [event("eplb_rebalance", fields, f"r-{index}") for index in range(60)]
    drops = DropCounter()
    sealed = seal(events, [transfer(f"t-{index}") for index in range(3)], [], drops)
    found = batches(sealed)
    assert len(found) > 1
    assert [item.request_id for one in found for item in one.events] == [f"r-{index}" for index in range(60)]
    assert sum(len(one.transfers.bytes) for one in found) == 3
    assert all(len(one.content) <= encoder.BATCH_BYTES for one in sealed)
    assert sum(one.held.get("eplb_rebalance", 0) for one in sealed) == 60
    assert not drops


def test_too_many_parts_are_split() -> None:
    """A batch holds no more strings and submessages than the agent takes."""
    fields = {"layers": [{"layer": 1, "from_ranks": [{"rank": 1, "bytes": 1}] * 100} for _ in range(100)]}
    drops = DropCounter()
    found = batches(seal([event("eplb_rebalance", fields)] * 5, [], [], drops))
    assert [len(one.events) for one in found] == [2, 1, 2]
    assert not drops


def test_oversize_event_is_dropped_and_counted() -> None:
    """One event that no message can hold is given up, its neighbours are not."""
    fields = {"layers": [{"recv_expert_ids": [70_000] * 400_000}]}
    drops = DropCounter()
    found = batches(seal([event(request_id="a"), event("eplb_rebalance", fields)], [], [], drops))
    assert [item.request_id for one in found for item in one.events] == ["a"]
    assert drops.drain() == {("oversize", "eplb_rebalance"): 1}


def test_split_counts_a_bad_entry_once() -> None:
    """A bad entry in a batch that has to be split is one drop."""
    fields = {"layers": [{"recv_expert_ids": [70_000] * 100_000}]}
    drops = DropCounter()
    seal([event("nonsense"), *[event("eplb_rebalance", fields)] * 8], [transfer(size=-1)], [], drops)
    assert drops.drain() == {("encode_error", "unknown"): 1, ("encode_error", "transfer_sample"): 1}


def test_accounts_go_with_the_frame() -> None:
    """Drops, guard errors and a tombstone's losses are on the wire."""
    sealed = Sealed(
        lost={("outbox_full", "load_outcome"): 4},
        drops={("queue_full", "probe_sample"): 3},
        guard_errors={("nixl.poll", "KeyError"): 2},
    )
    found = Batch.FromString(frame(7, 9, sealed))
    assert [(drop.reason, drop.kind, drop.count) for drop in found.drops] == [
        ("queue_full", "probe_sample", 3)
    ]
    assert [(drop.reason, drop.kind, drop.count) for drop in found.tombstone.lost] == [
        ("outbox_full", "load_outcome", 4)
    ]
    assert [(e.hook, e.error_class, e.count) for e in found.guard_errors] == [("nixl.poll", "KeyError", 2)]
    assert not Batch.FromString(frame(7, 9, Sealed())).HasField("tombstone")


@given(st.text(st.characters(), max_size=600))
@settings(deadline=None)
def test_text_is_cut_to_valid_unicode(value: str) -> None:
    """Any text, surrogates included, becomes at most a limit's worth of UTF-8, and a short one stays."""
    cut = cut_text(value, 100)
    encoded = cut.encode("utf-8")
    assert len(encoded) <= 100
    clean = value.encode("utf-8", "replace").decode()
    assert clean.startswith(cut)
    if len(clean.encode()) <= 100:
        assert cut == clean


WORD = st.text(max_size=20)
EVENTS = st.tuples(
    st.integers(-5, 1 << 65),
    st.sampled_from(["transfer_failure", "load_outcome", "nonsense"]),
    st.dictionaries(
        st.sampled_from(["mode", "connector", "reason", "x"]), st.integers(-1, 9) | WORD, max_size=3
    ),
    st.integers(-1, 4),
    st.integers(-1, 1 << 33),
    WORD | st.none(),
    st.booleans(),
)
PROBES = st.tuples(st.integers(-1, 1 << 65), st.integers(), st.integers(-1, 4), WORD, WORD | st.none(), WORD)


@given(st.lists(EVENTS, max_size=8), st.lists(PROBES, max_size=8))
@settings(max_examples=examples(150), deadline=None)
def test_every_entry_is_encoded_or_counted(events: Any, probes: Any) -> None:
    """Whatever hooks emit, encoded plus dropped is given, and what is held is what the message holds."""
    drops = DropCounter()
    sealed = seal(events, [], probes, drops)
    found = batches(sealed)
    encoded = sum(len(one.events) + len(one.probes.result) for one in found)
    assert encoded == sum(one.entries for one in sealed)
    assert encoded + sum(drops.drain().values()) == len(events) + len(probes)
    for one in found:
        assert {len(getattr(one.probes, name)) for name in records.PROBE_COLUMNS} == {len(one.probes.result)}


def test_columns_are_the_messages() -> None:
    """The tuples' order names every column of the wire, and no other."""
    assert tuple(TransferSamples.DESCRIPTOR.fields_by_name) == records.TRANSFER_COLUMNS
    assert tuple(ProbeSamples.DESCRIPTOR.fields_by_name) == records.PROBE_COLUMNS
    assert records.TRANSFER_COLUMNS[records.TRANSFER_TEXT] == "connector"
    assert records.PROBE_COLUMNS[records.PROBE_TEXT] == "connector"


def test_constants_are_the_wires() -> None:
    """Every number that hooks use is the enum's of that name."""
    names = [name for name in vars(constants) if name.isupper() and name != "ROLES"]
    assert len(names) > 50
    for name in names:
        module = next(each for each in (common_pb2, events_pb2, snapshot_pb2) if hasattr(each, name))
        assert getattr(constants, name) == getattr(module, name), name
    assert {
        word: common_pb2.Role.Value(f"ROLE_{word.upper()}") for word in constants.ROLES
    } == constants.ROLES
