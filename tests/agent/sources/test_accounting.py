"""Every entry that a source emits is stored, lost or pending; what is not shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.model import EngineKey, Source
from penstock.agent.sources.registry import MAX_ACCOUNTS, Account, Accounts, Registry
from penstock.proto.v1.ingest_pb2 import Batch, Drop, Tombstone
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import sample_batch, transfer_failure

SOURCE = Source(epoch=7, key=EngineKey("", "0"), process="engine-core")


def batch(seq: int, events: int = 1, samples: int = 0, lost: int = 0) -> Batch:
    """Build a batch that accounts for so many entries."""
    made = sample_batch([f"s{n}" for n in range(samples)], epoch=7, seq=seq)
    made.events.extend(transfer_failure(f"e{n}") for n in range(events))
    if lost:
        made.tombstone.CopyFrom(Tombstone(lost=[Drop(reason="outbox_full", kind="handshake", count=lost)]))
    return made


def told(produced: int, pending: int = 0) -> Snapshot:
    """Build what a source says of itself."""
    return Snapshot(emitter={"produced_entries": produced, "pending_entries": pending})


def test_an_account_counts_entries_and_losses():
    """Events, samples, drops and tombstones; a gauge that was dropped is no entry."""
    drops = [
        Drop(reason="queue_full", kind="probe_sample", count=4),
        Drop(reason="oversize", kind="snapshot_row", count=50),
    ]
    made = batch(1, events=2, samples=3, lost=6)
    made.drops.extend(drops)
    assert Account(10, 20).plus(made) == Account(15, 30)


def test_what_is_missing_shows():
    """And what is there too often; only a source whose first batch was seen can be judged."""
    registry = Registry(lambda: 1)
    registry.connect(SOURCE, 0)
    live = registry.get(7)
    assert live is not None
    registry.snapshot(7, Snapshot())
    assert live.unaccounted is None
    registry.snapshot(7, told(5, 5))
    assert live.unaccounted == 0
    registry.committed(7, batch(1, events=2, lost=1))
    for produced, missing in ((5, 0), (6, 1), (4, -1)):
        registry.snapshot(7, told(produced, 2))
        assert live.unaccounted == missing
    registry.disconnect(7)
    assert live.unaccounted is None


def test_an_account_goes_on_after_a_restart():
    """What the log held before comes from the aggregator; without it nothing is claimed."""
    for known, expected in ((Account(40, 2), 0), (None, None)):
        registry = Registry(lambda: 1, {7: known}.get)
        registry.restore(SOURCE, 12, 1)
        registry.connect(SOURCE, 12)
        registry.committed(7, batch(13))
        registry.snapshot(7, told(43))
        live = registry.get(7)
        assert live is not None
        assert live.unaccounted == expected


def test_accounts_begin_with_the_first_batch():
    """One that would begin later would be wrong."""
    accounts = Accounts()
    accounts.apply(8, batch(2))
    assert accounts.get(8) is None
    accounts.apply(7, batch(1))
    accounts.apply(7, batch(2, events=3))
    assert accounts.get(7) == Account(4, 0)


def test_accounts_are_bounded():
    """The one that was quiet for longest is forgotten."""
    accounts = Accounts()
    for epoch in range(MAX_ACCOUNTS):
        accounts.apply(epoch, batch(1))
    accounts.apply(0, batch(2))
    accounts.apply(MAX_ACCOUNTS, batch(1))
    assert accounts.get(1) is None
    assert accounts.get(0) == Account(2, 0)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), max_size=30))
def test_accounts_survive_a_dump(steps):
    """Order and numbers."""
    accounts = Accounts()
    for epoch, seq in steps:
        accounts.apply(epoch, batch(seq))
    again = Accounts.load(accounts.dump())
    assert again.dump() == accounts.dump()
