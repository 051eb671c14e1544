"""Engines that have gone are forgotten, after a time or on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.errors import ImpossibleError, NotFoundError
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.model import EngineKey
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.admin_server import AdminHarness, running_admin
from tests.support.agent.agent import short_directory
from tests.support.agent.batches import PEER, transfer_failure
from tests.support.agent.quiet import quiet_logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.model import Source

AFTER = 15 * 60.0
KEY = EngineKey("", "0")


@pytest.fixture
def harness() -> Iterator[AdminHarness]:
    """Serve the admin service over an empty journal."""
    with quiet_logs(), short_directory() as directory, running_admin(directory) as running:
        yield running


def _leave(harness: AdminHarness, source: Source, *, said_goodbye: bool = False) -> None:
    async def leave() -> None:
        harness.registry.disconnect(source.epoch, said_goodbye=said_goodbye)

    harness.run(leave())


def _sweep_at(harness: AdminHarness, seconds: float) -> None:
    harness.now = seconds
    harness.run(harness.retirement.sweep())


def _engines(harness: AdminHarness) -> list[str]:
    return [item.key.engine for item in harness.stub.ListEngines(admin.ListEnginesRequest()).engines]


def _counted(harness: AdminHarness) -> list[EngineKey]:
    return harness.aggregator.known()


def test_an_engine_that_has_gone_is_retired(harness: AdminHarness) -> None:
    """Its row, its counters, its policy feed and its front end; not before its time, and no other's."""
    core, other = harness.source("0"), harness.source("1")
    front = harness.source("", process="api", server="s")
    for source in (core, other, front):
        harness.append(source, transfer_failure("r"))
    subscriber = harness.engine("0")
    _sweep_at(harness, 0)
    _leave(harness, core)
    _leave(harness, front)
    # A policy stream is a sign of life, too.
    _sweep_at(harness, 10 * AFTER)
    assert KEY in _counted(harness)
    harness.hang_up(subscriber)
    begin = 20 * AFTER
    for seconds in (begin, begin + AFTER - 1):
        _sweep_at(harness, seconds)
        assert (_engines(harness), KEY in _counted(harness)) == (["0", "1"], True)
    _sweep_at(harness, begin + AFTER)
    assert _engines(harness) == ["1"]
    assert _counted(harness) == [other.key]
    assert harness.feed.subscriber(KEY) is None
    assert [live.source for live in harness.registry.sources()] == [other]


def test_an_engine_that_comes_back_in_time_is_not_retired(harness: AdminHarness) -> None:
    """Its time begins again when it goes again."""
    core = harness.source("0")
    harness.append(core, transfer_failure("r"))
    _leave(harness, core)
    _sweep_at(harness, 0)
    harness.source("0")
    _sweep_at(harness, AFTER)
    _leave(harness, core)
    _sweep_at(harness, AFTER + 1)
    _sweep_at(harness, 2 * AFTER)
    assert _counted(harness) == [KEY]
    _sweep_at(harness, 2 * AFTER + 1)
    assert _counted(harness) == []


def test_one_that_only_the_log_knows_is_retired(harness: AdminHarness) -> None:
    """After a restart of the agent; with the time that all have to come back."""
    core = harness.source("0")
    harness.append(core, transfer_failure("r"))
    _leave(harness, core)

    async def lose_sight() -> None:
        harness.registry.forget(KEY)

    harness.run(lose_sight())
    _sweep_at(harness, 0)
    assert _counted(harness) == [KEY]
    _sweep_at(harness, AFTER)
    assert _counted(harness) == []


def test_the_log_says_what_was_forgotten(harness: AdminHarness) -> None:
    """So a replay of it comes to the same."""
    core = harness.source("0")
    harness.append(core, transfer_failure("r"))
    _leave(harness, core)
    _sweep_at(harness, 0)
    _sweep_at(harness, AFTER)
    harness.source("0")
    harness.append(core, transfer_failure("r"))
    listed = harness.stub.ListEvents(admin.ListEventsRequest()).events
    assert [item.event.WhichOneof("body") for item in listed] == [
        "transfer_failure",
        "forgotten",
        "transfer_failure",
    ]
    replayed = Aggregator()
    with harness.journal.reader() as reader:
        for row in reader.batches(0):
            source = reader.source(row.epoch)
            assert source is not None
            replayed.apply(source, BatchColumns(Batch.FromString(row.body), row.body))
    assert replayed.dump() == harness.aggregator.dump()


def _forget(harness: AdminHarness, engine: EngineKey) -> None:
    harness.run(harness.retirement.forget_engine(engine, author="me", reason="scaled down"))


def test_an_engine_is_forgotten_on_demand(harness: AdminHarness) -> None:
    """With its server's front end, if that has no other engine; the audit log says who and why."""
    core, front = harness.source("0", server="s"), harness.source("", process="api", server="s")
    for source in (core, front):
        harness.append(source, transfer_failure("r"))
    with pytest.raises(NotFoundError, match="no engine 's/7'"):
        _forget(harness, EngineKey("s", "7"))
    with pytest.raises(ImpossibleError, match="engine s/0 is connected"):
        _forget(harness, core.key)
    _leave(harness, core)
    _leave(harness, front)
    _forget(harness, core.key)
    assert _counted(harness) == []
    assert harness.registry.sources() == []
    (entry,) = harness.stub.ListAudit(admin.ListAuditRequest()).entries
    assert (entry.action, entry.name, entry.author, entry.reason) == (
        "forget-engine", "engine s/0", "me", "scaled down",
    )  # fmt: skip


def _forget_peer(harness: AdminHarness, *keys: EngineKey) -> list[EngineKey]:
    found: list[EngineKey] = harness.run(
        harness.retirement.forget_peer(PEER, keys or None, author="me", reason="")
    )
    return found


def test_a_peer_is_forgotten_where_it_is_not_in_use(harness: AdminHarness) -> None:
    """In the engines that are named, or in all."""
    first, second = harness.source("0"), harness.source("1")
    for source in (first, second):
        harness.append(source, transfer_failure("r"))
    harness.snapshot(first, Snapshot(peers=[{"peer": {"address": PEER}, "connected": True}]))
    with pytest.raises(ImpossibleError, match=f"engine 0 reports {PEER} as connected"):
        _forget_peer(harness)
    assert _forget_peer(harness, second.key) == [second.key]
    assert harness.aggregator.counting_peer(PEER) == [first.key]
    harness.snapshot(first, Snapshot())
    assert _forget_peer(harness) == [first.key]
    with pytest.raises(NotFoundError, match="get peers --state all"):
        _forget_peer(harness)
    assert harness.stub.ListPeers(admin.ListPeersRequest(state="all")).peers == []
    assert [entry.action for entry in harness.stub.ListAudit(admin.ListAuditRequest()).entries] == [
        "forget-peer"
    ] * 2
