"""What must hold after any experiment: nothing acknowledged is lost, nothing is there twice, all is accounted for."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.agent.journal.database.schema import FILE
from penstock.agent.journal.query.reader import Reader
from penstock.agent.model import AGENT_PROCESS
from penstock.proto.v1.ingest_pb2 import Batch

from tests.faults.ids import held, is_producers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PAGE = 500


@dataclass
class Book:
    """One producer's ledger, as far as it has been read.

    Attributes:
        acknowledged: ids that the agent acknowledged.
        emitted: how many entries there were in all; None before the producer's end.
        settled: whether the producer saw everything acknowledged.
        streams: how many streams it had opened, each time it opened one.

    """

    word: str
    acknowledged: set[str] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)
    emitted: int | None = None
    settled: bool = False
    streams: list[int] = field(default_factory=list)


def read_book(path: Path) -> Book:
    """Read a ledger; its last line may be half written."""
    book = Book(path.stem)
    for line in path.read_text().splitlines():
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if "acknowledged" in entry:
            book.acknowledged.update(entry["acknowledged"])
            book.epochs.add(entry["epoch"])
        elif "streams" in entry:
            book.streams.append(entry["streams"])
        else:
            book.emitted, book.settled = entry["emitted"], entry["settled"]
    return book


class Oracle:
    """Follows a journal's log and holds it against the ledgers.

    Attributes:
        stored: how often each id of a producer is in the log.
        others: entries in the log of sources without a ledger, except the agent's.
        lost: entries that the log says were given up, by source.

    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._at = 0
        self._next: dict[int, int] = defaultdict(lambda: 1)
        self.stored: Counter[str] = Counter()
        self.others = 0
        self.lost: Counter[int] = Counter()

    def look(self) -> None:
        """Read what the log has beyond the last look. Each source's numbers have no gap and no double."""
        with Reader(self._path) as reader:
            rows = list(self._rows(reader))
            # After them: a source is there before its first batch.
            agents = {source.epoch for source in reader.sources() if source.process == AGENT_PROCESS}
            for epoch, seq, body in rows:
                assert seq == self._next[epoch], (
                    f"batch {seq} of {epoch} came where {self._next[epoch]} belongs"
                )
                self._next[epoch] += 1
                if epoch in agents:
                    continue
                batch = Batch.FromString(body)
                assert (batch.epoch, batch.seq) == (epoch, seq)
                names = held(body)
                ours = [name for name in names if is_producers(name)]
                self.stored.update(ours)
                self.others += len(names) - len(ours)
                self.lost[epoch] += sum(drop.count for drop in (*batch.drops, *batch.tombstone.lost))

    def _rows(self, reader: Reader) -> Iterator[tuple[int, int, bytes]]:
        while rows := reader.batches(self._at, _PAGE):
            for row in rows:
                yield row.epoch, row.seq, row.body
            self._at = rows[-1].id

    def check(self, books: Iterable[Book]) -> None:
        """Check integrity: at any time, the agent dead or alive, after a look."""
        doubled = [name for name, count in self.stored.items() if count > 1]
        assert not doubled, f"{len(doubled)} entries are in the log twice: {doubled[:5]}"
        for book in books:
            missing = book.acknowledged - self.stored.keys()
            assert not missing, (
                f"{len(missing)} acknowledged entries are not in the log: {sorted(missing)[:5]}"
            )

    def close(self, books: Iterable[Book]) -> None:
        """Check conservation and liveness too: after the producers' end. Produced = stored + dropped, none is left."""
        closed = list(books)
        self.check(closed)
        emitted = 0
        for book in closed:
            assert book.settled, f"{book.word} waited in vain for its acknowledgements"
            assert book.emitted is not None
            emitted += book.emitted
        words = {book.word for book in closed}
        strange = [name for name in self.stored if name.rpartition("-")[0] not in words]
        assert not strange, f"no engine emitted {strange[:5]}"
        assert emitted == self.stored.total() + self.lost.total(), (
            f"{emitted} emitted, {self.stored.total()} stored, {self.lost.total()} dropped"
        )
