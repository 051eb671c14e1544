"""What a batch holds, read once for all who look at it: the checks, the journal's indexes, the metrics.

Each look at a protobuf field from Python costs 0.05 to 0.2 µs. So what more than one of them needs is read here, in
columns: one call in C for all events of a kind.
"""

from __future__ import annotations

from functools import cached_property
from itertools import repeat
from operator import attrgetter, itemgetter, sub
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from penstock.agent.batch.transposed_events import TRANSPOSED, transposed_events
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.samples_pb2 import ProbeSamples, TransferSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.agent.batch.rows import KindAndEvent
    from penstock.proto.v1.ingest_pb2 import Batch

Samples: TypeAlias = TransferSamples | ProbeSamples
_T = TypeVar("_T")

FEW: Final = 8
"""Events of a batch, or of a kind in it, below which they are read one by one: columns cost more than they save."""

# Not by its instance: that would look for a field of this name first.
_which = Event.WhichOneof


def _at(places: Sequence[int], column: Sequence[_T]) -> Sequence[_T]:
    """Return the values of *column* at *places*, which ascend and are not empty."""
    if len(places) == len(column):
        return column
    return itemgetter(*places)(column) if len(places) > 1 else (column[places[0]],)


class _Events:
    """All events of a batch. Groups hold this and not the contents, which hold the groups: a cycle would outlive its use."""

    def __init__(self, batch: Batch, body: bytes) -> None:
        self.rows: Sequence[Event] = batch.events[:]
        self.transposed: Any = transposed_events(body) if body and len(self.rows) >= FEW else None

    @cached_property
    def times(self) -> Sequence[int]:
        return self._column("time_unix_nano")

    @cached_property
    def request_ids(self) -> Sequence[str]:
        return self._column("request_id")

    def _column(self, name: str) -> Sequence[Any]:
        read: Callable[[Any], Any] = attrgetter(name)
        if self.transposed is not None:
            column: list[Any] = read(self.transposed)[:]
            if len(column) == len(self.rows):
                return column
        return list(map(read, self.rows))


class EventGroup:
    """The events of one kind in a batch, in its order; all columns are equally long.

    Attributes:
        kind: the name of their body; "" for events of a newer peer.
        places: their indexes in the batch.

    """

    def __init__(self, kind: str, of: _Events) -> None:
        self.kind = kind
        self.places: list[int] = []
        self._of = of
        self._columns: dict[str, Sequence[Any]] = {}
        self._values: dict[str, Sequence[Any]] = {}

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.places)

    @cached_property
    def events(self) -> Sequence[Event]:
        """The events."""
        return _at(self.places, self._of.rows)

    @cached_property
    def times(self) -> Sequence[int]:
        """The events' times in nanoseconds."""
        return _at(self.places, self._of.times)

    @cached_property
    def newest(self) -> int:
        """The highest time."""
        return max(self.times)

    @cached_property
    def request_ids(self) -> Sequence[str]:
        """The request ids of the events; "" for none."""
        return _at(self.places, self._of.request_ids)

    @cached_property
    def bodies(self) -> Sequence[Any]:
        """The messages of the kind.

        Raises:
            AttributeError: the kind is "".

        """
        return list(map(attrgetter(self.kind), self.events))

    def column(self, path: str) -> Sequence[Any]:
        """Return a field of each body: ``reason``, ``peer.address``."""
        column = self._columns.get(path)
        if column is None:
            column = self._transposed(path)
            if len(column) != len(self):
                column = list(map(attrgetter(path), self.bodies))
            self._columns[path] = column
        return column

    def values(self, path: str) -> Sequence[Any]:
        """Return all values of a field that are not 0 or empty, and perhaps some that are."""
        return self._transposed(path) or self.column(path)

    def present(self, path: str) -> Sequence[Any] | None:
        """Return all values of a field that are not 0 or empty; None if that would take a look at each event."""
        known = self._of.transposed is not None and (self.kind, path) in TRANSPOSED
        return self._transposed(path) if known else None

    def may_have(self, path: str) -> bool:
        """Return whether a body may have a field of a repeated message, ``verifications.channel``; False is certain."""
        transposed = self._of.transposed
        return transposed is None or bool(attrgetter(f"{self.kind}.{path}")(transposed))

    def _transposed(self, path: str) -> Sequence[Any]:
        transposed = self._of.transposed
        if transposed is None or (self.kind, path) not in TRANSPOSED:
            return ()
        values = self._values.get(path)
        if values is None:
            values = self._values[path] = attrgetter(f"{self.kind}.{path}")(transposed)[:]
        return values


class SampleColumns:
    """Samples of one kind in a batch, each column as a list once it has been asked for."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._lists: dict[str, list[int]] = {}

    def __len__(self) -> int:
        """Return how many samples there are, once the columns have been found to be equally long."""
        return len(self._samples.end_time_unix_nano)

    def __getitem__(self, name: str) -> list[int]:
        """Return a column; not to be changed."""
        column = self._lists.get(name)
        if column is None:
            column = self._lists[name] = getattr(self._samples, name)[:]
        return column

    def least_durations(self) -> list[int] | None:
        """Return how long each transfer took at least: its end was some look before. None from engines that do not say."""
        unseen = self["end_uncertainty_nano"]
        if not unseen:
            return None
        durations = self["duration_nano"]
        return [max(each, 1) for each in map(sub, durations, unseen)] if any(unseen) else durations


class BatchColumns:
    """The entries of *batch*; the batch must not change from now on.

    Nothing is read before it is asked for. What was read stays, so who keeps this keeps some hundred bytes an entry.

    Args:
        batch: a batch.
        body: the bytes that it was parsed from, if they are there: reading is faster then.

    """

    def __init__(self, batch: Batch, body: bytes = b"") -> None:
        self.batch = batch
        self._body = body

    @cached_property
    def groups(self) -> dict[str, EventGroup]:
        """The events by kind, in the order of each kind's first one."""
        events = _Events(self.batch, self._body)
        groups: dict[str, EventGroup] = {}
        appends: dict[str | None, Callable[[int], None]] = {}
        for place, kind in enumerate(map(_which, events.rows, repeat("body"))):
            append = appends.get(kind)
            if append is None:
                group = groups[kind or ""] = EventGroup(kind or "", events)
                append = appends[kind] = group.places.append
            append(place)
        return groups

    def in_order(self, kinds: Iterable[str]) -> list[KindAndEvent]:
        """Return the events of *kinds* that there are, in the order of the batch."""
        return [(kind, event) for _, kind, event in self.placed(kinds)]

    def placed(self, kinds: Iterable[str]) -> list[tuple[int, str, Event]]:
        """Return the same, each with its index in the batch."""
        groups = [self.groups[kind] for kind in kinds if kind in self.groups]
        rows = [
            row
            for group in groups
            for row in zip(group.places, repeat(group.kind), group.events, strict=False)
        ]
        if len(groups) > 1:
            rows.sort(key=itemgetter(0))
        return rows

    @cached_property
    def strings(self) -> list[str]:
        """The string table of the samples."""
        return self.batch.strings[:]

    @cached_property
    def transfers(self) -> SampleColumns:
        """The transfers."""
        return SampleColumns(self.batch.transfers)

    @cached_property
    def probes(self) -> SampleColumns:
        """The probes of remote caches."""
        return SampleColumns(self.batch.probes)
