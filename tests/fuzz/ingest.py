"""Fuzzing of all that one message of an engine goes through: ``python -m tests.fuzz.ingest [libFuzzer's options]``.

Whatever the bytes are, they are refused with a ContractError, or everything behind the door can deal with them: the
journal, the metrics, the trace export, what a scrape and ``agentctl`` show.
"""

from __future__ import annotations

import sqlite3
import sys

import atheris

with atheris.instrument_imports(include=["penstock.agent"]):
    from penstock.agent.ctl.event_words import event_peer, event_words
    from penstock.agent.errors import ContractError
    from penstock.agent.ingest.limits import check_batch, check_hello, parse
    from penstock.agent.journal.schema import migrate
    from penstock.agent.journal.transaction import Transaction
    from penstock.agent.metrics import AgentMetrics, Exemplars, Exposition, Fold
    from penstock.agent.metrics.text import OPENMETRICS
    from penstock.agent.model import LoggedBatch, Source
    from penstock.agent.registry import Registry
    from penstock.agent.traces.assemble import Assembler
    from penstock.proto.v1.ingest_pb2 import Batch, Hello

SOURCE = Source.from_hello(1, Hello(schema_version=1, process="engine-core", key={"engine": "0"}))
TIME = 1_750_000_000_000_000_000
_HOUR = 3600 * 10**9


class Target:
    """All that is behind the door, without disk and network."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        migrate(self._database)

    def take(self, body: bytes) -> None:
        """Take one message as the service does; what it refuses goes no further."""
        try:
            batch = parse(body)
            check_batch(batch, len(body))
            if batch.HasField("hello"):
                check_hello(batch.hello)
        except ContractError:
            return
        if batch.seq:
            self._log(batch, body)
        elif batch.HasField("hello"):
            self._greet(Source.from_hello(batch.epoch, batch.hello))
        else:
            self._show(batch)

    def _greet(self, source: Source) -> None:
        self._database.execute("BEGIN")
        Transaction(self._database, {}).open_source(source, TIME)
        self._database.execute("ROLLBACK")

    def _log(self, batch: Batch, body: bytes) -> None:
        batch.epoch, batch.seq = SOURCE.epoch, 1
        self._database.execute("BEGIN")
        transaction = Transaction(self._database, {})
        transaction.open_source(SOURCE, TIME)
        transaction.append(SOURCE, batch, body, TIME)
        transaction.finish()
        self._database.execute("ROLLBACK")
        fold, again = Fold(), Fold()
        fold.apply(SOURCE, batch)
        again.load(fold.dump())
        assert fold.engines() == again.engines()
        render(fold, Registry(lambda: TIME))
        assembler = Assembler({SOURCE.epoch: SOURCE}.get)
        assembler.apply(LoggedBatch(1, SOURCE.epoch, 1, TIME, batch.SerializeToString()))
        assembler.advance(TIME + _HOUR)
        for event in batch.events:
            event_words(event)
            event_peer(event)

    def _show(self, batch: Batch) -> None:
        registry = Registry(lambda: TIME)
        registry.connect(SOURCE, 0)
        registry.snapshot(SOURCE.epoch, batch.snapshot)
        registry.engines()
        render(Fold(), registry)


def render(fold: Fold, registry: Registry) -> None:
    """Scrape; a part that fails would be left out of the text, so it is looked at."""
    exposition = Exposition(
        fold, registry.sources, Exemplars(), AgentMetrics(TIME), now_unix_nano=lambda: TIME
    )
    body, _ = exposition.render(OPENMETRICS)
    assert b'collector_success{collector="log"} 1' in body
    assert b'collector_success{collector="snapshots"} 1' in body


def main() -> None:
    """Fuzz until told to stop."""
    atheris.Setup(sys.argv, Target().take)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
