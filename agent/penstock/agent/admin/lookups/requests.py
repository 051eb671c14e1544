"""The log by request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.journal import MAX_INTEGER
from penstock.agent.traces.query import remote_request_id
from penstock.agent.traces.spans import RequestKey, request_entries, without_batch

if TYPE_CHECKING:
    from penstock.agent.journal import ReadBudget, Reader
    from penstock.agent.traces.spans import Entry

# Newest entries read of one request.
_MAX_ENTRIES = 512
_BATCHES_KEPT = 16


class RequestLog:
    """The log by request, within a read budget, up to the batch *until*."""

    def __init__(self, reader: Reader, allowance: ReadBudget, until: int = MAX_INTEGER) -> None:
        self._reader = reader
        self._before = until + 1
        self._allowance = allowance
        self._batches: dict[int, dict[RequestKey, list[Entry]]] = {}
        self._lost: dict[int, bool] = {}

    def entries(self, key: RequestKey) -> list[Entry]:
        """Return the newest entries of one request, at most 512."""
        found: list[Entry] = []
        for number in self._reader.request_batch_ids(key.request_id, self._before):
            if len(found) >= _MAX_ENTRIES or self._allowance.ends:
                break
            found += map(without_batch, self._batch(number).get(key, ()))
        return found

    def readers(self, request_id: str) -> list[RequestKey]:
        """Return the requests that name *request_id* as the other side's: those that were to read its blocks."""
        found: dict[RequestKey, None] = {}
        for number in self._reader.request_batch_ids(request_id, self._before):
            if self._allowance.ends:
                break
            for key, entries in self._batch(number).items():
                if key.request_id != request_id and any(
                    remote_request_id(entry) == request_id for entry in entries
                ):
                    found[key] = None
        return list(found)

    @property
    def cut(self) -> bool:
        """Whether there was more to read than the budget allows."""
        return self._allowance.cut

    def lost(self, epoch: int) -> bool:
        """Return whether a source is gone, so that its open requests will never close."""
        if epoch not in self._lost:
            self._lost[epoch] = not self._reader.is_open(epoch)
        return self._lost[epoch]

    def _batch(self, number: int) -> dict[RequestKey, list[Entry]]:
        entries = self._batches.pop(number, None)
        if entries is None:
            entries = self._read(number)
        # Consecutive requests share few batches: keep the last used ones.
        self._batches[number] = entries
        if len(self._batches) > _BATCHES_KEPT:
            del self._batches[next(iter(self._batches))]
        return entries

    def _read(self, number: int) -> dict[RequestKey, list[Entry]]:
        entries: dict[RequestKey, list[Entry]] = {}
        logged = self._reader.batch(number)
        if logged is not None:
            self._allowance.consume(len(logged.body))
            source = self._reader.source(logged.epoch)
            if source is not None:
                for key, entry in request_entries(source, self._reader.parse(logged)):
                    entries.setdefault(key, []).append(entry)
        return entries
