"""A diagnosis of a moment of the past knows nothing of what came later: it is that of a log that ends there."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.admin.calls.past_diagnoses import PastMoment
from penstock.agent.admin.lookups import WindowQuestion, past_engines, past_orders, read_windows
from penstock.agent.diagnosis import diagnose
from penstock.agent.journal import create_schema
from penstock.agent.journal.agent_log import agent_source
from penstock.agent.journal.commit.transaction import Transaction
from penstock.agent.model import EngineKey, Source
from penstock.agent.parsing import Selection
from penstock.agent.traces.spans import no_policies
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.proto.v1.ingest_pb2 import Batch, Goodbye

from tests.support.agent.batches import PEER, TIME, deferral_end, event, transfer_failure
from tests.support.agent.memory_journal import SharedReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.agent.diagnosis import Verdict
    from penstock.agent.journal import Reader
    from penstock.proto.v1.events_pb2 import Event

SECOND = 1_000_000_000
SELECTED = Selection((), (), frozenset())
# What it does to the process: it is there afterwards, or has ended without or with a word.
STAYS = ("closed", "failed", "decided", "waited", "cut_off", "paused", "resumed", "restarts", "reconnects")
ENDS = ("lost", "stopped", "goodbye")


class Step(NamedTuple):
    """What happens to an engine at a time, nanoseconds."""

    time: int
    server: str
    what: str


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """Give what happens to two engines."""
    time, steps = TIME, []
    for _ in range(draw(st.integers(1, 25))):
        time += draw(st.integers(1, 400)) * SECOND
        steps.append(Step(time, draw(st.sampled_from("ab")), draw(st.sampled_from((*STAYS, *ENDS)))))
    return steps


@dataclass
class Log:
    """A log in memory, and which engines are connected at its end, with when those that are not were seen last."""

    database: sqlite3.Connection
    connected: dict[EngineKey, bool] = field(default_factory=dict)
    seen: dict[EngineKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the tables."""
        create_schema(self.database)
        self._transaction = Transaction(self.database, {})
        self._epochs = {"a": 10, "b": 20}
        self._numbers: dict[int, int] = {}
        self._left: set[EngineKey] = set()

    def write(self, step: Step) -> None:
        """Write what happens at a step; a process that has ended starts anew before anything else happens to it."""
        key = EngineKey(step.server, "0")
        there = self.connected.get(key, False)
        if step.what in ENDS and not there:
            return
        # Who has said goodbye does not come back.
        returns = step.what == "reconnects" and key not in self._left
        if step.what == "restarts" or not (there or returns):
            if there:
                self._end("lost", step)
            self._epochs[step.server] += 1
        source = self._source(step.server)
        if not there or step.what == "restarts":
            self._transaction.open_source(source, step.time)
        self.connected[key] = step.what not in ENDS
        self._left.discard(key)
        self.seen[key] = step.time
        if step.what in ENDS:
            self._end(step.what, step)
        else:
            self._append(source, step.time, Batch(events=happens(step)))

    def finish(self) -> Reader:
        """Return a reader of what was written."""
        self._transaction.finish()
        return SharedReader(self.database)

    def _source(self, server: str) -> Source:
        return Source(self._epochs[server], EngineKey(server, "0"), "engine-core", role="decode")

    def _end(self, how: str, step: Step) -> None:
        source = self._source(step.server)
        if how == "goodbye":
            self._left.add(source.key)
            self._append(source, step.time, Batch(goodbye=Goodbye()))
            return
        body: dict[str, Any] = {"epoch": source.epoch, "last_seen_unix_nano": step.time}
        told = event(f"source_{how}", time_ns=step.time, process="engine-core", **body)
        self._append(agent_source(1, source.key), step.time, Batch(events=[told]))

    def _append(self, source: Source, time: int, batch: Batch) -> None:
        number = self._numbers[source.epoch] = self._numbers.get(source.epoch, 0) + 1
        batch.epoch, batch.seq = source.epoch, number
        self._transaction.append(source, batch, batch.SerializeToString(), time)


def happens(step: Step) -> list[Event]:
    """Return what an engine tells at a step."""
    name, time = f"{step.server}-{step.time}", step.time
    peer = {"address": PEER}
    match step.what:
        case "failed":
            return [transfer_failure(name, time_ns=time)]
        case "decided":
            outcome = {"outcome": common.OUTCOME_FAILED, "decided_by": common.DECIDED_BY_VLLM}
            return [
                event("load_outcome", name, time_ns=time, channel=common.CHANNEL_KV, peer=peer, **outcome)
            ]
        case "waited":
            return [deferral_end(name, time_ns=time, start_ns=time - 3 * SECOND)]
        case "cut_off":
            state: dict[str, Any] = {"state": QUARANTINE_STATE_OPEN, "reason": "failures"}
            return [event("quarantine_changed", time_ns=time, peer={"address": "10.0.0.9:1"}, **state)]
        case "paused" | "resumed":
            return [event("policy_applied", time_ns=time, accepted=True, cause=step.what.removesuffix("d"))]
    return [event("request_closed", name, time_ns=time, kv_role=common.ROLE_DECODE, finish_reason="stop")]


@contextmanager
def written(steps: Sequence[Step]) -> Iterator[tuple[Log, Reader]]:
    """Give a log of *steps*."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        log = Log(database)
        for step in steps:
            log.write(step)
        yield log, log.finish()


def asked(reader: Reader, at: int) -> tuple[PastMoment, Verdict]:
    """Return what is known of a moment, and its diagnosis."""
    past = past_engines(reader, at, retire_seconds=1e6)
    moment = PastMoment.of(at, past, past_orders([], at), (), SELECTED)
    question = WindowQuestion(
        now=at,
        since=600,
        baseline=3600,
        wanted=lambda _: True,
        roles={view.key: view.role for view in moment.views},
        ahead={},
        policies=no_policies,
        past=True,
    )
    facts = moment.facts(read_windows(reader, question), no_policies, admin.ListSuspectsResponse())
    return moment, diagnose(facts)


@given(scripts(), st.data())
def test_what_came_later_says_nothing(script: list[Step], data: st.DataObject) -> None:
    """The diagnosis at a moment is that of the log that ends there, and its engines are those that were there."""
    at = data.draw(st.integers(script[0].time, script[-1].time + 60 * SECOND))
    with written(script) as (_, reader):
        moment, whole = asked(reader, at)
    with written([step for step in script if step.time <= at]) as (log, reader):
        _, cut = asked(reader, at)
    assert (whole.sentence, whole.causes, whole.looked_at) == (cut.sentence, cut.causes, cut.looked_at)
    unsure = set(moment.past.unsure)
    assert {view.key: view.connected for view in moment.views if view.key not in unsure} == {
        key: there for key, there in log.connected.items() if key not in unsure
    }
    for view in moment.views:
        if not view.connected and view.key not in unsure:
            assert view.last_seen_unix_nano == log.seen[view.key]
