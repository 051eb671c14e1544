"""Reads the log within bounds of number and time: events, and what a diagnosis needs; reports whether the result was cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.batch import is_clean_up
from penstock.agent.diagnosis import OF_REQUESTS, RARE, WindowFold
from penstock.agent.journal import MAX_INTEGER, STEP_SECONDS, ReadBudget
from penstock.proto.names import NANOS
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey, LoggedBatch, PolicySource, Source
    from penstock.proto.v1.events_pb2 import Event

MAX_EVENTS = 20_000


# A batch may hold what happened so long before it was received: engines send once a second.
_SENT_SECONDS = 5.0
# So many are looked at for what happened earlier: engines keep what they could not send to an agent.
_FIRST_BATCHES = 16
# Of each kind: some 20 MiB of records, and about as many as two seconds allow.
_MAX_EVENTS = 100_000
# Of one kind; with what is made of it, an answer from a full journal takes two.
_READ_SECONDS = 1.5


class FoundEvent(NamedTuple):
    """An event of the log, its position and its source."""

    logged: LoggedBatch
    position: int
    event: Event
    source: Source


class EventScan:
    """The events at *rows*, within bounds; holds one batch in memory."""

    def __init__(
        self,
        reader: Reader,
        rows: Iterable[tuple[LoggedBatch, int]],
        *,
        events: int = MAX_EVENTS,
        allowance: ReadBudget | None = None,
    ) -> None:
        """Prepare the scan.

        Args:
            reader: of the journal, for the sources.
            rows: positions of events; those of one batch are adjacent.
            events: maximum number of events read.
            allowance: the read budget of *rows*.

        """
        self._full = False
        self._allowance = allowance or ReadBudget()
        self._reader = reader
        self._rows = rows
        self._events = events
        self._sources: dict[int, Source | None] = {}

    @classmethod
    def newest(
        cls,
        reader: Reader,
        *,
        kinds: Collection[str],
        since_unix_nano: int,
        request_id: str = "",
        until: int = MAX_INTEGER,
    ) -> EventScan:
        """Scan the newest events of *kinds* since *since_unix_nano*, of *request_id* or of all requests, up to batch *until*."""
        allowance = ReadBudget(seconds=STEP_SECONDS)
        rows = reader.scan(
            kinds=kinds,
            request_id=request_id,
            since_unix_nano=since_unix_nano,
            until=until,
            # One more than is read, to detect the cut.
            limit=MAX_EVENTS + 1,
            allowance=allowance,
        )
        return cls(reader, rows, events=MAX_EVENTS, allowance=allowance)

    @property
    def unreadable(self) -> int:
        """Number of damaged batches that the reader has met."""
        return self._reader.unreadable

    @property
    def cut(self) -> bool:
        """Whether the bounds ended the scan; valid after the iteration."""
        return self._full or self._allowance.cut

    def __iter__(self) -> Iterator[FoundEvent]:
        """Yield the events, except those of unknown sources."""
        batch, batch_id = Batch(), 0
        for logged, index in self._rows:
            if not self._events:
                self._full = True
                return
            self._events -= 1
            if logged.id != batch_id:
                batch, batch_id = self._reader.parse(logged), logged.id
            source = self._source(logged.epoch)
            if source is not None:
                yield FoundEvent(logged, index, batch.events[index], source)

    def _source(self, epoch: int) -> Source | None:
        if epoch not in self._sources:
            self._sources[epoch] = self._reader.source(epoch)
        return self._sources[epoch]


class ReadWindows(NamedTuple):
    """What was read.

    Attributes:
        policies: the policies behind the hashes of what was decided, by engine and hash.
        log_begins: seconds ago, if that is within the time asked for; 0 otherwise.
        unreadable: damaged batches among those that were read.

    """

    fold: WindowFold
    policies: Mapping[tuple[EngineKey, str], Sequence[PolicySource]]
    log_begins: float
    unreadable: int


class WindowQuestion(NamedTuple):
    """What is asked of the log.

    Attributes:
        now: the agent's clock, nanoseconds.
        since: seconds of the window.
        baseline: seconds of the time before it.
        wanted: whether an engine is selected.
        roles: the engines' roles, as words.
        ahead: the engines' clocks minus the agent's, nanoseconds.
        policies: returns the policies behind a hash in a source at a time.
        past: *now* is a moment of the past: what happened later is left out.

    """

    now: int
    since: float
    baseline: float
    wanted: Callable[[EngineKey], bool]
    roles: Mapping[EngineKey, str]
    ahead: Mapping[EngineKey, int]
    policies: Callable[[Source, str, int], Sequence[PolicySource]]
    past: bool = False

    def is_later(self, key: EngineKey, event: Event) -> bool:
        """Return whether an event happened after the moment that is asked about."""
        return self.past and event.time_unix_nano - self.ahead.get(key, 0) > self.now


def _begins(reader: Reader, question: WindowQuestion, until: int) -> float:
    """Return how many seconds ago the log begins, by what its first batches up to *until* tell; 0 if before the two times."""
    number, whole = reader.first(), question.since + question.baseline
    first = reader.batch(number)
    if first is None:
        return _SENT_SECONDS
    age = max(0.0, (question.now - first.received_unix_nano) / NANOS) + _SENT_SECONDS
    if age >= whole:
        return 0.0
    for each in filter(None, map(reader.batch, range(number, min(number + _FIRST_BATCHES, until + 1)))):
        events, source = reader.parse(each).events, reader.source(each.epoch)
        times = [event.time_unix_nano for event in events if event.time_unix_nano]
        if times and source is not None:
            age = max(age, (question.now - min(times) + question.ahead.get(source.key, 0)) / NANOS)
    return min(age, whole)


def read_windows(reader: Reader, question: WindowQuestion) -> ReadWindows:
    """Read the two times that a diagnosis compares: at most a second and a half for each kind of event, the newest first.

    vLLM's clean-up requests, and their failures, are left out: no user waits for these.
    """
    until = reader.last_until(question.now + int(_SENT_SECONDS * NANOS)) if question.past else MAX_INTEGER
    begins = _begins(reader, question, until)
    since = min(question.since, begins) if begins else question.since
    baseline = min(question.baseline, begins - since) if begins else question.baseline
    fold = WindowFold(question.now, since, baseline, question.ahead)
    policies: dict[tuple[EngineKey, str], Sequence[PolicySource]] = {}
    clean_ups: set[tuple[EngineKey, str]] = set()
    for kinds in (RARE, OF_REQUESTS):
        allowance = ReadBudget(seconds=_READ_SECONDS)
        # One more than is read, to detect the cut.
        rows = reader.scan(
            kinds=kinds,
            since_unix_nano=fold.start,
            until=until,
            limit=_MAX_EVENTS + 1,
            allowance=allowance,
        )
        scan = EventScan(reader, rows, events=_MAX_EVENTS, allowance=allowance)
        oldest = question.now
        for found in scan:
            oldest = found.logged.received_unix_nano
            key = found.source.key
            if not question.wanted(key) or question.is_later(key, found.event):
                continue
            if is_clean_up(found.event.request_closed):
                clean_ups.add((key, found.event.request_id))
                continue
            fold.add(key, question.roles.get(key, found.source.role), found.event)
            hash_ = found.event.load_outcome.policy_hash
            if hash_ and (key, hash_) not in policies:
                policies[key, hash_] = question.policies(found.source, hash_, found.event.time_unix_nano)
        fold.note_read(oldest if scan.cut else 0, of_requests=kinds is OF_REQUESTS)
    for window in (fold.present, fold.before):
        window.failures = [each for each in window.failures if (each.key, each.request_id) not in clean_ups]
    return ReadWindows(fold, policies, begins, reader.unreadable)
