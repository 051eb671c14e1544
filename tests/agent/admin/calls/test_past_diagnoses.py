"""``Diagnose`` of a moment of the past: what the log, the audit log and processes that still run tell of it, and no more."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.agent.journal.agent_log import agent_source
from penstock.agent.journal.commit import transaction
from penstock.agent.model import EngineKey, Source
from penstock.agent.parsing import Target
from penstock.agent.policy.manifest import check_manifest, effective_schedule
from penstock.agent.stalls import Stall, StallKind
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_CLOSED, QUARANTINE_STATE_OPEN
from penstock.proto.v1.ingest_pb2 import Batch, Goodbye
from penstock.proto.v1.snapshot_pb2 import EngineFacts, Snapshot

from tests.support.agent.batches import PEER, event, transfer_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1.events_pb2 import Event

    from tests.support.agent.admin_server import AdminHarness

SECOND, HOUR = 1_000_000_000, 3_600_000_000_000


class Film:
    """An agent and its log over two hours; times are seconds from their beginning.

    What happens is told in any order, and written by :meth:`play` in the order of time.
    """

    def __init__(self, harness: AdminHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = harness
        self.start = (time.time_ns() - 2 * HOUR) // SECOND * SECOND
        self._now = self.start
        self._scenes: list[tuple[float, Callable[[], object]]] = []
        monkeypatch.setattr(transaction, "time", SimpleNamespace(time_ns=lambda: self._now))
        for part in (harness.store, harness.orders, harness.pauses):
            monkeypatch.setattr(part, "_clock", lambda: self._now / 1e9)

    def at(self, seconds: float) -> int:
        """Return a time, nanoseconds."""
        return self.start + int(seconds * SECOND)

    def when(self, seconds: float, scene: Callable[[], object]) -> None:
        """Call *scene* when the agent's clock stands at that time."""
        self._scenes.append((seconds, scene))

    def play(self) -> None:
        """Let everything happen."""
        for seconds, scene in sorted(self._scenes, key=lambda each: each[0]):
            self._now = self.at(seconds)
            scene()
        self._scenes.clear()

    def engine(self, seconds: float, server: str = "decode", epoch: int = 1) -> Source:
        """Connect an engine."""
        fields: dict[str, Any] = {"role": "decode", "model": "tiny", "labels": {"role": "decode"}, "pid": 42}
        fields["start_time_unix_nano"] = self.at(seconds)
        self.when(seconds, lambda: self.harness.source(server=server, epoch=epoch, **fields))
        return Source(epoch=epoch, key=EngineKey(server, "0"), process="engine-core", **fields)

    def tell(self, seconds: float, source: Source, *events: Event, batch: Batch | None = None) -> None:
        """Log what *source* reports."""
        for each in events:
            each.time_unix_nano = self.at(seconds)
        self.when(seconds, lambda: self.harness.append(source, *events, batch=batch))

    def calm(self, source: Source, begin: float, end: float) -> None:
        """Log a request that is well, each minute."""
        for seconds in range(int(begin), int(end), 60):
            self.tell(seconds, source, closed(f"ok-{source.epoch}-{seconds}"))

    def lose(self, seconds: float, source: Source, seen: float) -> None:
        """Log that *source* is lost, and take it away."""
        own = agent_source(self.harness.journal.agent_epoch, source.key)
        body: dict[str, Any] = {
            "epoch": source.epoch,
            "process": source.process,
            "last_seen_unix_nano": self.at(seen),
        }
        self.tell(seconds, own, event("source_lost", **body))
        self.when(seconds, lambda: self.harness.disconnect(source))

    def ask(self, seconds: float, since: float = 600, **fields: Any) -> admin.Diagnosis:
        """Return the diagnosis of a time, after everything has happened."""
        self.play()
        request = admin.DiagnoseRequest(**fields)
        request.at.FromNanoseconds(self.at(seconds))
        request.since.FromNanoseconds(int(since * SECOND))
        answer: admin.Diagnosis = self.harness.stub.Diagnose(request)
        assert answer.at.ToNanoseconds() == self.at(seconds)
        return answer


@pytest.fixture
def film(harness: AdminHarness, monkeypatch: pytest.MonkeyPatch) -> Film:
    """Give an agent whose log a test fills at times of the past."""
    return Film(harness, monkeypatch)


def closed(request_id: str) -> Event:
    """Return the end of a request that is well."""
    return event("request_closed", request_id, kv_role=common.ROLE_DECODE, finish_reason="stop")


def kinds(diagnosis: admin.Diagnosis) -> list[str]:
    """Return the kinds of the causes that last."""
    return [each.kind for each in diagnosis.causes if not each.HasField("until")]


def test_an_engine_that_is_lost_and_comes_back(film: Film) -> None:
    """Nothing before; away before its loss is written; then lost; then it is back."""
    film.calm(film.engine(0, "other", 7), 0, 7000)
    first = film.engine(0)
    film.calm(first, 10, 3590)
    film.lose(3600, first, seen=3590)
    film.calm(film.engine(3900, epoch=2), 3910, 7000)

    before = film.ask(3540)
    assert (before.verdict, list(before.causes)) == (admin.DIAGNOSIS_VERDICT_NOTHING_WRONG, [])
    assert before.looked_at[0].startswith("2 connected engines")
    assert kinds(film.ask(3595)) == ["engine_away"]
    (lost,) = film.ask(3605).causes
    assert lost.kind == "engine_lost"
    assert lost.sentence.endswith("last 5.0s ago, and is not connected")
    assert "is connected again" in film.ask(4200, since=900).causes[0].sentence
    after = film.ask(4800)
    assert (after.verdict, list(after.causes)) == (admin.DIAGNOSIS_VERDICT_NOTHING_WRONG, [])


def test_who_says_goodbye_is_not_lost(film: Film) -> None:
    """An engine that has said goodbye is not connected, and nothing is wrong; one that is forgotten is not known."""
    film.calm(film.engine(0, "other", 7), 0, 7000)
    leaving = film.engine(0)
    film.calm(leaving, 10, 1000)
    film.tell(1000, leaving, batch=Batch(goodbye=Goodbye()))
    assert film.ask(990).engines == 2
    after = film.ask(1200)
    assert (after.engines, kinds(after)) == (2, [])
    assert after.looked_at[0].startswith("1 connected engine ")
    # It is away for longer than the agent knows it.
    assert film.ask(3000).engines == 1


def failing_policy(film: Film) -> tuple[Any, str]:
    """Return a policy that fails loads, and its hash in the engine."""
    manifest = check_manifest(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "TransferPolicy",
            "metadata": {"name": "strict"},
            "spec": {"selector": {"matchLabels": {"role": "decode"}}, "kvLoadFailure": {"action": "fail"}},
        }
    )
    target = Target(EngineKey("decode", "0"), "tiny", {"role": "decode"})
    when = datetime.fromtimestamp(film.start / 1e9, UTC)
    return manifest, effective_schedule([manifest], target, when)[0].merged.hash


def fails(request_id: str, hash_: str) -> list[Event]:
    """Return a failed load whose request a policy lets fail."""
    return [
        transfer_failure(request_id),
        event(
            "load_outcome",
            request_id,
            channel=common.CHANNEL_KV,
            outcome=common.OUTCOME_FAILED,
            decided_by=common.DECIDED_BY_POLICY,
            mode=common.FAILURE_MODE_HANDSHAKE,
            error_type=common.ERROR_TYPE_REFUSED,
            peer={"address": PEER},
            policy_hash=hash_,
        ),
    ]


@pytest.mark.parametrize(
    "told", [True, False], ids=["the engine told what it took", "it told only what it decided"]
)
def test_a_policy_that_was_deleted_later_is_the_cause_while_it_was_in_force(
    film: Film, *, told: bool
) -> None:
    """Its deletion is no news before it happened; afterwards the cause has ended."""
    core = film.engine(0)
    film.calm(core, 0, 3000)
    manifest, hash_ = failing_policy(film)
    store, run = film.harness.store, film.harness.run
    film.when(3000, lambda: run(store.apply(manifest, author="alice")))
    if told:
        film.tell(3001, core, event("policy_applied", hash=hash_, accepted=True, cause="push"))
    for number in range(5):
        film.tell(3010 + number, core, *fails(f"bad-{number}", hash_))
    film.when(3100, lambda: run(store.delete("strict", author="bob")))
    film.tell(3101, core, event("policy_applied", previous_hash=hash_, accepted=True, cause="push"))
    film.calm(core, 3110, 7000)

    then = film.ask(3050)
    assert kinds(then)[0] == "policy_fails_loads"
    assert then.causes[0].sentence.startswith(
        "policy strict (generation 1 by alice) says kvLoadFailure.action: fail"
    )
    # Nothing that changes what is in force now; what looks back looks as far.
    assert list(then.causes[0].commands) == ["agentctl get audit strict"]
    later = next(each for each in film.ask(3300).causes if each.kind == "policy_fails_loads")
    assert later.until.ToNanoseconds() == film.at(3100)
    assert re.search("ended 3m ago$", later.sentence)


def test_nothing_of_now_is_told_of_then(film: Film) -> None:
    """Stalls, orders, blocks that are held and damage of now are not of then; that snapshots are not kept is said."""
    core = film.engine(0)
    film.calm(core, 0, 7190)
    film.play()
    facts = EngineFacts(kv_connector="NixlConnector", num_gpu_blocks=10)
    snapshot = Snapshot(
        engine=facts, deferred=[{"count": 3, "oldest_start_time_unix_nano": film.at(10)}], paused=True
    )
    snapshot.held.add(holder=1, blocks=5, requests=1, oldest_start_time_unix_nano=film.at(10))
    film.harness.snapshot(core, snapshot)
    film.harness.stalls[core.key] = (
        Stall(StallKind.STEP_STUCK, 1, film.at(10) / 1e9, "a step does not return"),
    )
    order = admin.SetQuarantineRequest(state=QUARANTINE_STATE_OPEN, author="alice", peer=PEER)
    order.ttl.FromSeconds(600)
    film.harness.stub.SetQuarantine(order)

    then = film.ask(3000)
    assert (kinds(then), then.verdict) == ([], admin.DIAGNOSIS_VERDICT_NOTHING_WRONG)
    assert any("the log keeps no snapshots" in each for each in then.missing)
    # Of a process that still runs its facts are known.
    assert not any("have ended" in each for each in then.missing)


def test_orders_and_quarantines_of_then(film: Film) -> None:
    """What engines and operators had cut off, and a pause that is over now; before and after there was none."""
    core = film.engine(0)
    film.calm(core, 0, 1000)
    opened: dict[str, Any] = {"peer": {"address": PEER}, "state": QUARANTINE_STATE_OPEN, "reason": "failures"}
    film.tell(1000, core, event("quarantine_changed", **opened))
    film.calm(core, 1010, 2000)
    film.tell(2000, core, event("quarantine_changed", **{**opened, "state": QUARANTINE_STATE_CLOSED}))
    order = admin.SetQuarantineRequest(state=QUARANTINE_STATE_OPEN, author="tester", peer="10.0.0.9:5600")
    order.ttl.FromSeconds(600)
    film.when(3000, lambda: film.harness.stub.SetQuarantine(order))
    film.calm(core, 2010, 4000)
    film.tell(4000, core, event("policy_applied", accepted=True, cause="pause"))
    film.tell(4500, core, event("policy_applied", accepted=True, cause="resume"))
    eject = admin.SetEjectionRequest(
        author="tester", selector={"engines": [{"server": "decode", "engine": "0"}]}
    )
    ended = admin.SetEjectionRequest(author="tester")
    eject.ttl.FromSeconds(600)
    film.when(5000, lambda: film.harness.stub.SetEjection(eject))
    film.when(5500, lambda: film.harness.stub.SetEjection(ended))
    film.when(6000, lambda: film.harness.stub.SetEjection(eject))
    film.calm(core, 4510, 7000)

    times = (990, 1700, 2100, 3300, 3700, 4100, 4600, 5400, 5600, 6100, 6700)
    assert [kinds(film.ask(seconds)) for seconds in times] == [
        [],
        ["peer_stays_quarantined"],
        [],
        ["healthy_peer_quarantined"],
        [],
        ["paused"],
        [],
        ["out_of_rotation"],
        [],
        ["out_of_rotation"],
        [],
    ]
    (cause,) = film.ask(5400).causes
    assert any("whether they answered so then is not known" in each.fact for each in cause.evidence)


def test_now_and_at_now_say_the_same(film: Film) -> None:
    """Of causes that come from the log."""
    core = film.engine(0)
    film.calm(core, 0, 7000)
    for number in range(5):
        film.tell(7150 + number, core, *fails(f"bad-{number}", ""))
    film.play()
    film.harness.snapshot(core, Snapshot(engine=EngineFacts(kv_connector="NixlConnector")))
    now = film.harness.stub.Diagnose(admin.DiagnoseRequest())
    then = film.ask(7199)
    assert kinds(now) == kinds(then) != []
    assert [each.sentence for each in now.causes] == [each.sentence for each in then.causes]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3 * 3600, "is to come; give a time up to now"),
        (-8 * 86400, "more than 7 days ago; give a later time"),
        (-100, "and the log begins at .*; give a later time"),
    ],
)
def test_times_that_the_log_does_not_have(film: Film, seconds: float, words: str) -> None:
    """The error says what to give."""
    film.calm(film.engine(0), 0, 100)
    with pytest.raises(grpc.RpcError, match=words) as refused:
        film.ask(seconds)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_empty_log_and_an_engine_that_was_not_there(film: Film) -> None:
    """Both are told."""
    with pytest.raises(grpc.RpcError, match="the log is empty"):
        film.ask(100)
    film.calm(film.engine(0, "other", 7), 0, 1000)
    film.calm(film.engine(3000), 3000, 3100)
    asked: dict[str, Any] = {"selector": {"engines": [{"server": "decode", "engine": "0"}]}}
    with pytest.raises(grpc.RpcError, match="engine decode/0 was not known at"):
        film.ask(900, **asked)
    assert film.ask(3060, **asked).engines == 1
    assert film.ask(3060).engines == 2


def test_an_engine_of_which_nothing_shows_that_it_came_back(film: Film) -> None:
    """The same process connects again: its next entry shows that it is back; until then that is not known."""
    film.calm(film.engine(0, "other", 7), 0, 7000)
    core = film.engine(0)
    film.calm(core, 10, 1000)
    film.lose(1010, core, seen=1000)
    film.when(1020, lambda: film.harness.source(server="decode", epoch=1))
    film.calm(core, 1500, 7000)
    unknown = film.ask(1400)
    assert any("whether engine decode/0 had come back is not known" in each for each in unknown.missing)
    assert "is connected again" in film.ask(1560).causes[0].sentence
