"""All that one message of an engine goes through behind the door, without disk and network.

The journal, the metrics, the trace export to OTLP's bytes, a scrape, the answers of the admin service and what
``agentctl`` shows of them.
"""

from __future__ import annotations

import sqlite3

from penstock.agent.batch.columns import BatchColumns
from penstock.agent.errors import ContractError
from penstock.agent.ingest.message_limits import check_batch, check_hello, parse_message
from penstock.agent.journal.commit.transaction import Transaction
from penstock.agent.journal.database.schema import create_schema
from penstock.agent.metrics.agent_metrics import AgentMetrics
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.exposition.text_formats import OPENMETRICS
from penstock.agent.metrics.gatherer import Exemplars, Gatherer
from penstock.agent.model import LoggedBatch, Source
from penstock.agent.sources.registry import Registry
from penstock.agent.traces.assembly.assembler import Assembler
from penstock.agent.traces.assembly.finished_requests import find_finished_request
from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.assembly.sampling import Sampler
from penstock.agent.views.events import event_peer, event_words
from penstock.proto.v1.ingest_pb2 import Batch, Hello

from tests.fuzz.answers import Answers
from tests.support.agent.memory_journal import SharedReader

EPOCH = 1
SOURCE = Source.from_hello(EPOCH, Hello(schema_version=1, process="engine-core", key={"engine": "0"}))
TIME = 1_750_000_000_000_000_000
_HOUR = 3600 * 10**9


class Target:
    """All that is behind the door, without disk and network."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        create_schema(self._database)
        self._answers = Answers(self._database, TIME / 1e9)

    def close(self) -> None:
        """Leave nothing behind."""
        self._answers.close()
        self._database.close()

    def take(self, body: bytes) -> bool:
        """Take one message as the service does; returns False if it is refused, which is as good."""
        try:
            batch = parse_message(body)
            contents = BatchColumns(batch, body)
            check_batch(contents, body)
            if batch.HasField("hello"):
                check_hello(batch.hello)
        except ContractError:
            return False
        if batch.seq:
            self._log(contents)
        elif batch.HasField("hello"):
            self._greet(Source.from_hello(batch.epoch, batch.hello))
        else:
            self._show(batch)
        return True

    def _greet(self, source: Source) -> None:
        self._database.execute("BEGIN")
        Transaction(self._database, {}).open_source(source, TIME)
        self._database.execute("ROLLBACK")

    def _log(self, contents: BatchColumns) -> None:
        batch = contents.batch
        batch.epoch, batch.seq = SOURCE.epoch, 1
        self._database.execute("BEGIN")
        try:
            transaction = Transaction(self._database, {})
            transaction.open_source(SOURCE, TIME)
            transaction.append(SOURCE, batch, batch.SerializeToString(), TIME, contents)
            transaction.finish()
            self._read(contents)
        finally:
            self._database.execute("ROLLBACK")

    def _read(self, contents: BatchColumns) -> None:
        batch = contents.batch
        aggregator, again = Aggregator(), Aggregator()
        aggregator.apply(SOURCE, contents)
        again.load(aggregator.dump())
        assert aggregator.engines() == again.engines()
        registry = Registry(lambda: TIME, aggregator.account)
        registry.connect(SOURCE, 0)
        registry.committed(SOURCE.epoch, batch)
        render(aggregator, registry)
        reader = SharedReader(self._database)
        limits = AssemblyLimits()
        assembler = Assembler(
            {SOURCE.epoch: SOURCE}.get,
            find_finished=lambda key, logged: find_finished_request(
                reader, key, logged, sampler=lambda _source: Sampler(), limits=limits
            ),
        )
        finished = assembler.apply(LoggedBatch(1, SOURCE.epoch, 1, TIME, batch.SerializeToString()))
        finished += assembler.advance(TIME + _HOUR)
        self._answers.about_spans(span for item in finished for span in item.spans)
        self._answers.about_log(batch)
        self._answers.about_engines(aggregator, registry)
        for event in batch.events:
            event_words(event)
            event_peer(event)

    def _show(self, batch: Batch) -> None:
        registry = Registry(lambda: TIME)
        registry.connect(SOURCE, 0)
        registry.snapshot(SOURCE.epoch, batch.snapshot)
        registry.engines()
        render(Aggregator(), registry)
        self._answers.about_engines(Aggregator(), registry)


def render(aggregator: Aggregator, registry: Registry) -> None:
    """Scrape; a part that fails would be left out of the text, so it is looked at."""
    exposition = Gatherer(aggregator, registry.sources, Exemplars(), AgentMetrics(TIME))
    body, _ = exposition.render(OPENMETRICS)
    assert b'collector_success{collector="log"} 1' in body
    assert b'collector_success{collector="snapshots"} 1' in body
