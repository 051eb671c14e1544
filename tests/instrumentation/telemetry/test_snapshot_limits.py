"""A snapshot is bounded whatever its providers put into it; a part of it goes with its owner."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.ingest.message_limits import check_batch, parse_message
from penstock.instrumentation.telemetry.encoder import BATCH_BYTES, ROWS_MAX, TEXT_MAX, enforce_limits
from penstock.instrumentation.telemetry.snapshots import Snapshots
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot


def filled(peers: int = 0, deferred: int = 0, in_flight: int = 0, name: str = "10.0.0.7:5600") -> Snapshot:
    """Build a snapshot of so many rows whose peers have a name and an engine id of that text."""
    snapshot = Snapshot(time_unix_nano=1, paused=True)
    for rows, count in (
        (snapshot.peers, peers),
        (snapshot.deferred, deferred),
        (snapshot.in_flight, in_flight),
    ):
        for _ in range(count):
            rows.add(peer={"address": name, "engine_id": name})
    return snapshot


def test_usual_snapshot_stays() -> None:
    """What fits is not touched."""
    snapshot = filled(peers=ROWS_MAX, deferred=3, name="é" * (TEXT_MAX // 2))
    snapshot.engine.labels["role"] = "decode"
    del snapshot.peers[100:]
    before = Snapshot.FromString(snapshot.SerializeToString())
    assert enforce_limits(snapshot) == 0
    assert snapshot == before


@pytest.mark.parametrize("name", ["x" * 5_000, "é" * 5_000], ids=["ascii", "wide"])
def test_text_is_cut_where_it_stands(name: str) -> None:
    """A long text anywhere is cut to its limit; the row and its neighbours stay."""
    snapshot = filled(peers=2, deferred=1, name=name)
    snapshot.engine.model = name
    snapshot.policy.last_error = name
    snapshot.hooks.add(name="nixl", reason=name)
    assert enforce_limits(snapshot) == 0
    want = name.encode()[:TEXT_MAX].decode()
    rows: list[Any] = [*snapshot.peers, *snapshot.deferred]
    assert {row.peer.address for row in rows} == {want}
    assert {snapshot.engine.model, snapshot.policy.last_error, snapshot.hooks[0].reason} == {want}


def test_rows_beyond_the_limit_are_given_up() -> None:
    """The last rows of a list that is too long go, counted; other lists stay."""
    snapshot = filled(peers=ROWS_MAX + 7, deferred=5)
    assert enforce_limits(snapshot) == 7
    assert (len(snapshot.peers), len(snapshot.deferred)) == (ROWS_MAX, 5)


@given(st.integers(0, 1_500), st.integers(0, 1_500), st.integers(0, 1_500), st.sampled_from(["x", "é" * 900]))
@settings(max_examples=12, deadline=None)
def test_bounded_snapshot_is_taken(peers: int, deferred: int, in_flight: int, name: str) -> None:
    """Whatever a snapshot holds, the agent takes what is left, and no row is lost without being counted."""
    snapshot = filled(peers, deferred, in_flight, name)
    lost = enforce_limits(snapshot)
    left = len(snapshot.peers) + len(snapshot.deferred) + len(snapshot.in_flight)
    assert left + lost == peers + deferred + in_flight
    body = Batch(epoch=1, snapshot=snapshot).SerializeToString()
    assert snapshot.ByteSize() <= BATCH_BYTES
    check_batch(BatchColumns(parse_message(body), body), body)


class _Steps:
    """Has a part of the snapshot."""

    def fill(self, snapshot: Snapshot) -> None:
        """Count a step more."""
        snapshot.progress.steps += 1


def test_a_part_is_there_for_as_long_as_its_owner_lives() -> None:
    """Of two of a kind each adds its own; one that is gone adds nothing, and its provider goes."""
    snapshots, owners = Snapshots(), [_Steps(), _Steps()]
    snapshots.add_living("steps", owners[0])
    snapshots.add_living("steps", owners[1])
    for left in (2, 1, 0):
        found = Snapshot()
        snapshots.collect(found)
        assert found.progress.steps == left
        del owners[-1:]
    assert not snapshots._providers
