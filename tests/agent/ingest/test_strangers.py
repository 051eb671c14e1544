"""Another process of the pod that sends under an engine's name, over real gRPC: it is refused, and the engine goes on."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from penstock.agent.journal.agent_log import agent_source
from penstock.agent.model import EngineKey
from penstock.proto.v1.ingest_pb2 import Goodbye
from penstock.proto.v1.snapshot_pb2 import EngineFacts, Snapshot

from tests.support.agent.agent import short_directory, wait_until
from tests.support.agent.batches import deferral_start, transfer_failure
from tests.support.agent.ingest import running_ingest
from tests.support.agent.ingest_client import FakeEngine

OWN, OTHER = b"o" * 16, b"x" * 16


def connected(ingest, engine):
    """Tell whether the agent has a stream of *engine*."""
    live = ingest.call(ingest.registry.get, engine.epoch)
    return live is not None and live.connected


def refusal(engine):
    """Connect in vain; return what the agent says."""
    with pytest.raises(grpc.RpcError) as caught:
        engine.connect()
    engine.disconnect()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    return caught.value.details()


@pytest.mark.parametrize("secret", [OTHER, b""], ids=["another secret", "none"])
def test_a_stranger_does_not_speak_for_an_engine(ingest, secret):
    """It is refused with a sentence and counted; the engine's stream, its gauges and its open waits stay."""
    with FakeEngine(ingest.address, secret=OWN) as engine:
        engine.publish(deferral_start("r"))
        engine.snapshot(Snapshot(engine=EngineFacts(block_size=16)))
        said = refusal(FakeEngine(ingest.address, secret=secret))
        assert said.startswith("engine '0' is held by another process, which is connected")
        assert engine.publish(transfer_failure("r")) == 2
        (view,) = ingest.call(ingest.registry.engines)
        assert [live.source.epoch for live in view.sources] == [engine.epoch]
        assert view.facts.block_size == 16
        with ingest.journal.reader() as reader:
            assert reader.open_deferrals(engine.epoch)[1] == 1
        assert ingest.service.refused.last == said
        refused = ingest.metrics.registry.get_sample_value
        assert refused("penstock_agent_refused_messages_total", {"reason": "held"}) == 1


@pytest.mark.parametrize("process", ["worker", "engine-core"])
def test_an_epoch_is_one_process_s(ingest, process):
    """Who has seen it in a log cannot go on with it, nor say goodbye for it, nor move it to another engine."""
    with FakeEngine(ingest.address, secret=OWN) as engine:
        engine.publish(transfer_failure("a"))
        stranger = FakeEngine(ingest.address, epoch=engine.epoch, engine="9", process=process, secret=OTHER)
        assert (
            refusal(stranger) == f"epoch {engine.epoch} is another process's; draw a random one at the start"
        )
        assert engine.publish(transfer_failure("b")) == 2
        engine.disconnect()
        wait_until(lambda: not connected(ingest, engine), "the agent has noticed")
        refusal(stranger)
        assert engine.connect() == 2


def test_the_agent_s_own_epoch_belongs_to_no_engine(ingest):
    """Under it the agent writes what was lost."""
    own = agent_source(ingest.journal.agent_epoch, EngineKey("", "0"))
    ingest.run(ingest.journal.open_source(own))
    assert "is another process's" in refusal(FakeEngine(ingest.address, epoch=own.epoch, secret=OTHER))


def test_an_engine_that_is_killed_and_started_again(ingest):
    """The new process comes in as soon as the old one's connection has ended."""
    with FakeEngine(ingest.address, secret=OWN) as engine:
        engine.publish(transfer_failure("a"))
    wait_until(lambda: not connected(ingest, engine), "the agent has noticed")
    with FakeEngine(ingest.address, secret=OTHER) as again:
        assert again.publish(transfer_failure("b")) == 1


def test_an_engine_whose_connection_broke_off_has_its_place_again(ingest):
    """What came meanwhile under its name is cut off."""
    with FakeEngine(ingest.address, secret=OWN) as engine:
        engine.publish(transfer_failure("a"))
        engine.disconnect()
        wait_until(lambda: not connected(ingest, engine), "the agent has noticed")
        with FakeEngine(ingest.address, secret=OTHER) as stranger:
            assert engine.connect() == 1
            assert stranger.failure() is grpc.StatusCode.ABORTED
        assert engine.publish(transfer_failure("b")) == 2


def test_one_process_reconnects_before_its_end_is_noticed(ingest):
    """With a new epoch, too: it has the same secret."""
    with (
        FakeEngine(ingest.address, secret=OWN) as first,
        FakeEngine(ingest.address, epoch=first.epoch, secret=OWN) as second,
    ):
        assert first.failure() is grpc.StatusCode.ABORTED
        with FakeEngine(ingest.address, secret=OWN) as renewed:
            assert renewed.publish(transfer_failure("a")) == 1
        assert second.publish(transfer_failure("b")) == 1


def test_ranks_and_front_ends_stand_beside_each_other(ingest):
    """Each is a process of its own, with a secret of its own; several front ends of a server have one key."""
    ranks = [FakeEngine(ingest.address, process="worker", rank=n, secret=b"%16d" % n) for n in range(3)]
    fronts = [FakeEngine(ingest.address, process="api", engine="", secret=b"f%15d" % n) for n in range(3)]
    with FakeEngine(ingest.address, secret=OWN):
        for source in (*ranks, *fronts):
            source.connect()
            assert source.publish(transfer_failure("r")) == 1
        for source in (*ranks, *fronts):
            source.goodbye()


def test_a_goodbye_frees_the_engine(ingest):
    """The next process holds it for good: the one that has ended does not come back."""
    engine = FakeEngine(ingest.address, secret=OWN)
    engine.connect()
    engine.publish(goodbye=Goodbye(reason="exit"))
    engine.disconnect()
    wait_until(lambda: not connected(ingest, engine), "the agent has noticed")
    with FakeEngine(ingest.address, secret=OTHER):
        refusal(engine)


def test_an_epoch_that_the_journal_knows_is_not_new(ingest, monkeypatch):
    """Although it was forgotten here: a flood of new ones does not keep it out."""
    asked = []
    admission = ingest.service._source_admission.admission
    check = admission.check_source

    def noted(*args: Any, **fields: Any) -> None:
        asked.append(fields)
        check(*args, **fields)

    monkeypatch.setattr(admission, "check_source", noted)
    with FakeEngine(ingest.address, secret=OWN) as engine:
        engine.publish(transfer_failure("a"))
    wait_until(lambda: not connected(ingest, engine), "the agent has noticed")
    ingest.call(ingest.registry._sources.clear)
    with engine:
        assert engine.acknowledged == 1
    assert [fields["new_bytes"] > 0 for fields in asked] == [True, False]


def test_what_is_kept_of_a_secret_is_a_digest():
    """On disk; and the next agent knows the process by it."""
    with short_directory() as directory:
        with running_ingest(directory) as ingest, FakeEngine(ingest.address, secret=OWN) as engine:
            engine.publish(transfer_failure("a"))
            assert OWN.decode() not in repr(ingest.call(ingest.registry.get, engine.epoch))
        assert not any(OWN in path.read_bytes() for path in directory.rglob("*") if path.is_file())
        with running_ingest(directory) as ingest:
            stranger = FakeEngine(ingest.address, epoch=engine.epoch, secret=OTHER)
            assert "is another process's" in refusal(stranger)
            with FakeEngine(ingest.address, epoch=engine.epoch, secret=OWN) as back:
                assert back.acknowledged == 1
