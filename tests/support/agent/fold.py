"""An assembler over a log in memory."""

from __future__ import annotations

from typing import Any

from penstock.agent.journal.database.stored_rows import parse_batch
from penstock.agent.traces.assembly.assembler import Assembler
from penstock.agent.traces.assembly.finished_requests import find_finished_request
from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.assembly.sampling import Sampler

from tests.support.agent.stories import (
    SOURCES,
    Log,
)

GRACE = AssemblyLimits().grace_nano


class Fold:
    """An assembler over a log in memory, which looks up finished requests in that log."""

    def __init__(
        self, log: Log, ratio: float = 1.0, limits: AssemblyLimits | None = None, delivered: int = 0
    ) -> None:
        self.log = log
        self.limits = limits or AssemblyLimits()
        self.ratio = ratio
        self.assembler = Assembler(
            self.source,
            find_finished=self.look_up,
            sampler=lambda _source: Sampler(ratio, ratio),
            limits=self.limits,
            delivered=delivered,
        )
        self.finished: list[Any] = []

    def look_up(self, key, logged):
        """Read the log as the export reads the journal."""
        reader: Any = self
        return find_finished_request(
            reader, key, logged, sampler=lambda _source: Sampler(self.ratio, self.ratio), limits=self.limits
        )

    def request_batches(self, request_id, before, allowance):
        """Return the batches of requests, as the journal's reader does."""
        return [logged for logged in self.log.batches if logged.id < before]

    def parse(self, logged):
        """Do what the journal's reader does."""
        return parse_batch(logged)

    def source(self, epoch):
        """Do what the journal's reader does."""
        return SOURCES.get(epoch)

    def walk(self, after: int = 0, last: int | None = None) -> Fold:
        """Apply the batches from *after* on, to *last*."""
        for logged in self.log.batches[after:last]:
            self.finished += self.assembler.apply(logged)
        return self

    def rest(self) -> Fold:
        """Advance the clock beyond the end of the log."""
        self.finished += self.assembler.advance(self.log.now + 10 * GRACE)
        return self

    @property
    def spans(self):
        """All spans so far."""
        return [span for item in self.finished for span in item.spans]
