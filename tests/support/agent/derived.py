"""All that the agent makes of a log: spans, sentences and counters."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from penstock.agent.batch.columns import BatchColumns
from penstock.agent.journal.database.stored_rows import parse_batch
from penstock.agent.journal.index.disk_format import request_ids
from penstock.agent.journal.query.reader import Reader
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.traces.assembly.assembler import Assembler
from penstock.agent.traces.assembly.finished_requests import EngineLoss, find_finished_request
from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.assembly.sampling import Sampler
from penstock.agent.traces.query import search
from penstock.agent.traces.query.explain import request_sentences
from penstock.agent.traces.spans.model import request_entries
from penstock.agent.views.events import event_words
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.consistency import check_counts, check_sentences, check_spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.agent.model import LoggedBatch, Source
    from penstock.agent.traces.assembly.model import FinishedRequest
    from penstock.agent.traces.query.search import RequestTrace
    from penstock.agent.traces.spans.model import RequestKey, Span

_LATER = 10 * AssemblyLimits().grace_nano


class Told:
    """What is made of *logged*, batches in the order of the log, by the *sources* of their epochs."""

    def __init__(self, logged: Sequence[LoggedBatch], sources: Mapping[int, Source]) -> None:
        self._logged = logged
        self._sources = sources
        self._batches = [Batch.FromString(each.body) for each in logged]
        self._naming: dict[str, list[LoggedBatch]] = defaultdict(list)
        for each, batch in zip(logged, self._batches, strict=True):
            for request_id in request_ids(BatchColumns(batch)):
                self._naming[request_id].append(each)
        self.spans = self._spans()
        self.sentences = [text for story in self._stories() for text in request_sentences(story)]
        self.aggregator = Aggregator()
        for each, batch in zip(logged, self._batches, strict=True):
            self.aggregator.apply(sources[each.epoch], BatchColumns(batch))

    @classmethod
    def of_journal(cls, path: Path) -> Told:
        """Read a journal, of an agent that runs or does not."""
        with Reader(path) as reader:
            # In this order: a source is there before its first batch.
            logged = reader.batches(0, 1 << 30)
            return cls(logged, {source.epoch: source for source in reader.sources()})

    def check(self) -> Told:
        """Check that it adds up."""
        check_spans(self.spans)
        check_sentences(self.sentences)
        events = [event for batch in self._batches for event in batch.events]
        check_counts(self.aggregator, events)
        assert all(map(event_words, events))
        return self

    def named(self, name: str) -> list[Span]:
        """Return the spans of one name."""
        return [span for span in self.spans if span.name == name]

    def _spans(self) -> list[Span]:
        assembler = Assembler(self._sources.get, find_finished=self._recall)
        finished = [item for each in self._logged for item in assembler.apply(each)]
        if self._logged:
            finished += assembler.advance(self._logged[-1].received_unix_nano + _LATER)
        return [span for item in finished for span in item.spans]

    def _recall(self, key: RequestKey, logged: LoggedBatch) -> FinishedRequest | None:
        reader: Any = self
        return find_finished_request(
            reader, key, logged, sampler=lambda _source: Sampler(), limits=AssemblyLimits()
        )

    def _stories(self) -> list[RequestTrace]:
        gathered: dict[RequestKey, search._Entries] = {}
        endings = []
        for logged, batch in zip(self._logged, self._batches, strict=True):
            for key, entry in request_entries(self._sources[logged.epoch], batch):
                gathered.setdefault(key, search._Entries()).add(logged, entry)
            for event in batch.events:
                if event.HasField("source_lost"):
                    lost = event.source_lost
                    endings.append(
                        (
                            logged,
                            EngineLoss(self._sources[lost.epoch].key, lost.epoch, lost.last_seen_unix_nano),
                        )
                    )
        reader: Any = self
        stories = (
            search._request_trace(reader, key, found, endings, requested=True, truncated=False)
            for key, found in gathered.items()
        )
        return [story for story in stories if story.facts.own]

    # What the journal's reader does.

    def parse(self, logged: LoggedBatch) -> Batch:
        """Return the batch."""
        return parse_batch(logged)

    def request_batches(self, request_id: str, before: int, _allowance: object) -> list[LoggedBatch]:
        """Return the batches that name a request."""
        return [logged for logged in self._naming[request_id] if logged.id < before]

    def source(self, epoch: int) -> Source | None:
        """Return the source of an epoch."""
        return self._sources.get(epoch)

    def scan(self, **_which: object) -> list[tuple[LoggedBatch, int]]:
        """Find nothing: no sentence is about handshakes."""
        return []
