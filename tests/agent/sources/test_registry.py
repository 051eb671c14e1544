"""Live sources and the engines that they make up."""

from __future__ import annotations

import pytest
from penstock.agent.model import EngineKey, Source
from penstock.agent.sources.engines import MAX_ENGINES, EngineRoles
from penstock.agent.sources.registry import CLOCK_READINGS, MAX_SOURCES, Registry
from penstock.proto.v1 import common_pb2
from penstock.proto.v1.ingest_pb2 import Batch, Drop, GuardError, Tombstone
from penstock.proto.v1.snapshot_pb2 import EngineFacts, PolicyStatus, Snapshot

KEY = EngineKey("", "0")


def source(epoch, key=KEY, process="engine-core", rank=0, **fields):
    """Build a source."""
    return Source(epoch=epoch, key=key, process=process, rank=rank, **fields)


@pytest.fixture
def clock():
    """Return a clock that a test sets."""
    return [1]


@pytest.fixture
def registry(clock):
    """Return an empty registry on that clock."""
    return Registry(lambda: clock[0])


def test_an_engine_is_its_engine_core(registry, clock):
    """Role, facts, policy and connection are the EngineCore's; workers and front ends come along."""
    registry.connect(source(1, role="decode", model="m", labels={"tier": "gold"}), 0)
    registry.connect(source(2, process="worker", labels={"rack": "7", "tier": "x"}), 0)
    registry.connect(source(3, key=EngineKey("", ""), process="api"), 0)
    clock[0] = 9
    registry.snapshot(1, Snapshot(engine=EngineFacts(model="m"), policy=PolicyStatus(hash="h"), paused=True))
    (engine,) = registry.engines()
    assert (engine.key, engine.connected, engine.role, engine.paused) == (KEY, True, "decode", True)
    assert (engine.facts.model, engine.policy.hash, engine.last_seen_unix_nano) == ("m", "h", 9)
    assert engine.labels == {"tier": "gold", "rack": "7"}
    assert [live.source.epoch for live in engine.sources] == [1, 2, 3]
    registry.disconnect(1)
    (engine,) = registry.engines()
    assert (engine.connected, engine.facts, engine.policy, engine.paused) == (False, None, None, False)


def test_a_front_end_alone_is_no_engine(registry):
    """An API process serves engines; it is none."""
    registry.connect(source(1, key=EngineKey("s", ""), process="api"), 0)
    assert registry.engines() == []
    assert len(registry.sources()) == 1


def test_the_front_ends_of_a_data_parallel_server_stand_beside_each_other(registry):
    """`vllm serve` starts an API process for each engine; all have one name, and come back in any order."""
    front = {"key": EngineKey("s", ""), "process": "api"}
    for index in ("0", "1"):
        registry.connect(source(10 + int(index), key=EngineKey("s", index)), 0)
        registry.connect(source(20 + int(index), **front), 0)
    for epoch in (20, 21):
        registry.disconnect(epoch)
    for epoch in (21, 20):
        registry.connect(source(epoch, **front), 3)
    for engine, core in zip(registry.engines(), (10, 11), strict=True):
        assert {live.source.epoch for live in engine.sources if live.connected} == {core, 20, 21}


def test_a_snapshot_never_outlives_its_stream(registry):
    """A gauge is absent until a snapshot of the present stream."""
    registry.connect(source(1), 0)
    registry.snapshot(1, Snapshot(time_unix_nano=1))
    registry.disconnect(1)
    assert registry.get(1).snapshot is None
    registry.connect(source(1), 5)
    assert (registry.get(1).snapshot, registry.get(1).watermark) == (None, 5)


def test_a_new_epoch_takes_the_place_of_the_one_that_is_away(registry):
    """Restarts of an engine leave no trail; a sibling of another rank stays."""
    registry.connect(source(1), 0)
    registry.connect(source(2, process="worker", rank=1), 0)
    registry.disconnect(1)
    registry.disconnect(2)
    registry.connect(source(3), 0)
    assert [live.source.epoch for live in registry.sources()] == [2, 3]


def test_an_overlap_of_two_epochs_shows_the_connected_one(registry, clock):
    """While the old one is still here the new one is added; the engine stays connected when the old one goes."""
    registry.connect(source(1, vllm_version="old"), 0)
    clock[0] = 2
    registry.connect(source(2, vllm_version="new"), 0)
    assert registry.engines()[0].vllm_version == "new"
    registry.disconnect(1)
    assert registry.engines()[0].connected


def test_losses_are_counted_by_reason(registry):
    """Drops, tombstones and guard errors add up over batches; the watermark follows."""
    registry.connect(source(1), 0)
    drop = Drop(reason="queue_full", kind="handshake", count=2)
    for seq in (1, 2):
        registry.committed(
            1, Batch(seq=seq, drops=[drop], guard_errors=[GuardError(hook="h", error_class="E", count=1)])
        )
    registry.committed(1, Batch(seq=3, tombstone=Tombstone(lost=[drop])))
    live = registry.get(1)
    assert live.drops == {("queue_full", "handshake"): 6}
    assert live.guard_errors == {("h", "E"): 2}
    assert live.watermark == 3


def test_the_kinds_of_losses_are_bounded(registry):
    """A source that invents reasons does not grow the registry."""
    registry.connect(source(1), 0)
    for seq in range(1, 4):
        registry.committed(1, Batch(seq=seq, drops=[Drop(reason=f"{seq}-{n}", count=1) for n in range(500)]))
    assert len(registry.get(1).drops) == 512


def test_sources_that_are_away_are_forgotten_beyond_the_limit(registry, clock):
    """The longest away go first; those that are connected stay."""
    registry.connect(source(1, key=EngineKey("", "live")), 0)
    for epoch in range(2, MAX_SOURCES + 12):
        clock[0] = epoch
        registry.connect(source(epoch, key=EngineKey("", str(epoch))), 0)
        registry.disconnect(epoch)
    epochs = [live.source.epoch for live in registry.sources()]
    assert len(epochs) == MAX_SOURCES
    assert epochs[:2] == [1, 13]


def test_a_restored_source_is_away_until_it_connects(registry):
    """What the journal held open is shown as disconnected."""
    registry.restore(source(1), 7, 5)
    (engine,) = registry.engines()
    assert (engine.connected, engine.last_seen_unix_nano) == (False, 5)
    registry.connect(source(1), 7)
    assert registry.engines()[0].connected


def test_what_is_said_of_an_unknown_epoch_is_ignored(registry):
    """A late word of a source that was forgotten changes nothing."""
    registry.snapshot(1, Snapshot())
    registry.committed(1, Batch(seq=1))
    registry.disconnect(1)
    assert registry.sources() == []


def test_subscribers_learn_of_connects_and_disconnects(registry):
    """Until it unsubscribes."""
    heard = []
    end = registry.subscribe(lambda: heard.append(len(registry.sources())))
    registry.connect(source(1), 0)
    registry.disconnect(1)
    end()
    registry.connect(source(2), 0)
    assert heard == [1, 1]


def test_a_snapshot_tells_how_far_the_clocks_are_apart(registry, clock):
    """The source's minus ours; nothing before the first, or if the source does not say."""
    registry.connect(source(1), 0)
    registry.snapshot(1, Snapshot())
    assert registry.get(1).clock_offset_nano is None
    clock[0] = 100
    registry.snapshot(1, Snapshot(time_unix_nano=70))
    assert registry.get(1).clock_offset_nano == -30


def test_a_snapshot_that_came_late_says_nothing_about_clocks(registry, clock):
    """The way takes time, which makes a clock seem to be behind: of the last snapshots the fastest tells."""
    registry.connect(source(1), 0)
    for delay in (5, 690, 3, 700):
        clock[0] += 1_000
        registry.snapshot(1, Snapshot(time_unix_nano=clock[0] - delay))
    assert registry.get(1).clock_offset_nano == -3
    for _ in range(CLOCK_READINGS):
        clock[0] += 1_000
        registry.snapshot(1, Snapshot(time_unix_nano=clock[0] - 100))
    assert registry.get(1).clock_offset_nano == -100


def test_a_retired_source_is_remembered_until_it_is_back(registry):
    """An engine's word is its EngineCore's; while that is connected it has said none."""
    registry.connect(source(1), 0)
    registry.connect(source(2, process="worker"), 0)
    registry.disconnect(2, said_goodbye=True)
    assert not registry.engines()[0].said_goodbye
    registry.disconnect(1, said_goodbye=True)
    assert registry.engines()[0].said_goodbye
    registry.connect(source(1), 0)
    registry.disconnect(1)
    assert not registry.engines()[0].said_goodbye


def test_what_is_forgotten_is_not_connected(registry):
    """Sources of that engine that are away; who listens hears of it once."""
    heard = []
    for epoch, process in ((1, "engine-core"), (2, "worker")):
        registry.connect(source(epoch, process=process), 0)
    registry.connect(source(3, key=EngineKey("", "1")), 0)
    registry.disconnect(2)
    registry.disconnect(3)
    registry.subscribe(lambda: heard.append(True))
    registry.forget(KEY)
    assert [live.source.epoch for live in registry.sources()] == [1, 3]
    registry.forget(KEY)
    assert len(heard) == 1


def test_the_role_of_an_engine_is_that_of_its_facts(registry):
    """What the EngineCore tells counts for its workers, stays while it is away, and goes when it is forgotten."""
    core, worker = source(1, role="unspecified"), source(2, process="worker")
    registry.connect(core, 0)
    registry.connect(worker, 0)
    assert registry.roles.described(worker) is worker
    registry.snapshot(1, Snapshot(engine=EngineFacts(role=common_pb2.ROLE_DECODE, role_guessed=True)))
    registry.snapshot(2, Snapshot())
    described = registry.roles.described(worker)
    assert (described.role, described.role_guessed, described.epoch) == ("decode", True, 2)
    registry.disconnect(1)
    registry.disconnect(2)
    assert registry.roles.described(core).role == "decode"
    registry.forget(KEY)
    assert registry.roles.described(core) is core


def test_the_roles_are_bounded():
    """A pod that names engine after engine costs no more than a bound."""
    roles = EngineRoles()
    for number in range(MAX_ENGINES + 5):
        roles.note(source(1, key=EngineKey("", str(number))), EngineFacts(role=common_pb2.ROLE_DECODE))
    first, last = (source(1, key=EngineKey("", str(number))) for number in (0, MAX_ENGINES + 4))
    assert (roles.described(first).role, roles.described(last).role) == ("unspecified", "decode")
