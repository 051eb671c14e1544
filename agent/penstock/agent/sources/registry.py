"""Sources and engines with their last snapshots, and the accounts of their entries. Pure, in memory, on one thread.

With what a source says it has produced and what waits in it, every entry is accounted for: produced = stored + lost + pending.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.sources.engines import EngineRoles
from penstock.proto.names import ENGINE_CORE, NOT_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.agent.model import EngineKey, Source
    from penstock.proto.v1.ingest_pb2 import Batch
    from penstock.proto.v1.snapshot_pb2 import EngineFacts, PolicyStatus, Snapshot

# Sources whose account is kept; above it, the one that was quiet for longest is forgotten.
MAX_ACCOUNTS = 4_096

# Kinds of drops that are no entries.


class Account(NamedTuple):
    """One source's entries in the log."""

    stored: int = 0
    lost: int = 0

    def plus(self, batch: Batch) -> Account:
        """Return the account after one more committed batch."""
        stored = (
            len(batch.events) + len(batch.transfers.end_time_unix_nano) + len(batch.probes.end_time_unix_nano)
        )
        lost = sum(
            drop.count for drop in (*batch.drops, *batch.tombstone.lost) if drop.kind not in NOT_ENTRIES
        )
        return Account(self.stored + stored, self.lost + lost)


class Accounts:
    """The accounts by epoch, of sources whose first batch was seen: an account that begins later would be wrong."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[int, Account] = OrderedDict()

    def apply(self, epoch: int, batch: Batch) -> None:
        """Count a committed batch, in the order of the log."""
        account = Account() if batch.seq == 1 else self._accounts.pop(epoch, None)
        if account is None:
            return
        self._accounts[epoch] = account.plus(batch)
        self._accounts.move_to_end(epoch)
        while len(self._accounts) > MAX_ACCOUNTS:
            self._accounts.popitem(last=False)

    def get(self, epoch: int) -> Account | None:
        """Return a source's account; None if its first batch was not seen or is too old."""
        return self._accounts.get(epoch)

    def dump(self) -> list[list[int]]:
        """Return the state for JSON."""
        return [[epoch, *account] for epoch, account in self._accounts.items()]

    @classmethod
    def load(cls, rows: Iterable[Sequence[int]]) -> Accounts:
        """Return the accounts that :meth:`dump` described.

        Raises:
            ValueError: a row is of another shape.

        """
        accounts = cls()
        for epoch, stored, lost in rows:
            accounts._accounts[epoch] = Account(stored, lost)
        return accounts


# Sources that are away are forgotten, the longest away first, when there are more than this in all.
MAX_SOURCES = 1_024
# Kinds of drops and guard errors that are kept apart for one source.
_MAX_KINDS = 512

CLOCK_READINGS = 16
"""Snapshots, one a second, that the estimate of a source's clock offset uses."""


@dataclass(slots=True)
class LiveSource:
    """A source of this life of the agent, or one that its journal still holds open.

    Attributes:
        last_seen_unix_nano: the agent's clock at its last message.
        watermark: the highest batch committed.
        snapshot: the last one of this stream; None while it is away, for a gauge is never older than its stream.
        clock_readings: its clock minus ours when each of its last snapshots came.
        drops: entries lost in the source, by (reason, kind), since the agent started.
        guard_errors: contained errors, by (hook, error class), since the agent started.
        account: its entries in the log; None if they are not known from its first batch on.
        unaccounted: entries that its last snapshot speaks of, and that are neither in the log, nor lost, nor pending;
            negative if the log has more than it emitted. None before a snapshot has told.
        said_goodbye: it is away, and said so, or its server had announced its stop.
        kill_switch_unread: the kill switch has changed for it since its last snapshot.

    """

    source: Source
    connected: bool = False
    last_seen_unix_nano: int = 0
    watermark: int = 0
    snapshot: Snapshot | None = None
    clock_readings: deque[int] = field(default_factory=lambda: deque(maxlen=CLOCK_READINGS), repr=False)
    drops: Counter[tuple[str, str]] = field(default_factory=Counter)
    guard_errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    account: Account | None = None
    unaccounted: int | None = None
    said_goodbye: bool = False
    kill_switch_unread: bool = False

    @property
    def clock_offset_nano(self) -> int | None:
        """Its clock minus ours; None before the first snapshot.

        A snapshot's way takes time, which makes its clock seem to be behind: of the last ones the fastest tells.
        """
        return max(self.clock_readings, default=None)


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine: what its sources say together.

    Attributes:
        connected: whether its EngineCore is (any of its workers, where no EngineCore was ever seen).
        cores: how many EngineCores are connected under this name; more than one is a mistake in the pod.
        said_goodbye: it is not connected, and its EngineCore said goodbye or stopped with its server.
        start_time_unix_nano: of its EngineCore's process, by the engine's clock; 0 if unknown.
        facts: None until the EngineCore's first snapshot.
        policy: likewise.
        paused: the EngineCore says that it is passive.
        sources: its own and those of its server's API processes.

    """

    key: EngineKey
    connected: bool
    cores: int
    said_goodbye: bool
    start_time_unix_nano: int
    last_seen_unix_nano: int
    role: str
    role_guessed: bool
    model: str
    vllm_version: str
    labels: Mapping[str, str]
    facts: EngineFacts | None
    policy: PolicyStatus | None
    paused: bool
    sources: tuple[LiveSource, ...]


class Registry:
    """Live sources by epoch. A new epoch of the same process takes the place of the one that is away.

    Attributes:
        roles: of the engines; may be read from any thread.

    """

    def __init__(
        self, clock: Callable[[], int], account: Callable[[int], Account | None] = lambda _: None
    ) -> None:
        """Create an empty registry.

        Args:
            clock: unix nanoseconds.
            account: returns what the log held of a source before it was added here.

        """
        self._clock = clock
        self._account = account
        self._sources: dict[int, LiveSource] = {}
        self._changed: list[Callable[[], None]] = []
        self.roles = EngineRoles()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* whenever a source comes or goes; returns the unsubscription."""
        self._changed.append(callback)
        return lambda: self._changed.remove(callback)

    def _notify(self) -> None:
        for callback in tuple(self._changed):
            callback()

    def add(self, live: LiveSource) -> None:
        """Add a source in the state that it had when it was saved."""
        self._add(live)
        if live.snapshot is not None and live.snapshot.HasField("engine"):
            self.roles.note(live.source, live.snapshot.engine)

    def restore(
        self, source: Source, watermark: int, last_seen_unix_nano: int, *, said_goodbye: bool = False
    ) -> None:
        """Add a source of an earlier life of the agent; it is away until it connects."""
        self._add(
            LiveSource(
                source,
                False,
                last_seen_unix_nano,
                watermark,
                account=self._opening(source.epoch, watermark),
                said_goodbye=said_goodbye,
            )
        )

    def _opening(self, epoch: int, watermark: int) -> Account | None:
        return self._account(epoch) if watermark else Account()

    def connect(self, source: Source, watermark: int) -> None:
        """Add a source whose stream has begun."""
        live = self._sources.get(source.epoch)
        if live is None:
            live = self._add(LiveSource(source, account=self._opening(source.epoch, watermark)))
        live.source, live.connected, live.snapshot, live.unaccounted = source, True, None, None
        live.said_goodbye = False
        live.watermark, live.last_seen_unix_nano = watermark, self._clock()
        self._notify()

    def _add(self, live: LiveSource) -> LiveSource:
        place = _place(live.source)
        replaced = [
            old for old in self._sources.values() if not old.connected and _place(old.source) == place
        ]
        away = sorted(
            (old for old in self._sources.values() if not old.connected and _place(old.source) != place),
            key=lambda old: old.last_seen_unix_nano,
        )
        surplus = max(0, len(self._sources) - len(replaced) + 1 - MAX_SOURCES)
        for old in (*replaced, *away[:surplus]):
            del self._sources[old.source.epoch]
        self._sources[live.source.epoch] = live
        return live

    def disconnect(self, epoch: int, *, said_goodbye: bool = False) -> None:
        """Mark a source as disconnected: its stream has ended."""
        live = self._sources.get(epoch)
        if live is not None:
            live.connected, live.snapshot, live.unaccounted = False, None, None
            live.said_goodbye = said_goodbye
            self._notify()

    def forget(self, key: EngineKey) -> None:
        """Forget the sources of *key*; connected ones stay."""
        gone = [
            live.source.epoch
            for live in self._sources.values()
            if live.source.key == key and not live.connected
        ]
        for epoch in gone:
            del self._sources[epoch]
        if not any(live.source.key == key for live in self._sources.values()):
            self.roles.forget(key)
        if gone:
            self._notify()

    def snapshot(self, epoch: int, snapshot: Snapshot) -> None:
        """Store the source's snapshot, after all batches that it sent before were committed."""
        live = self._sources.get(epoch)
        if live is not None:
            live.snapshot, live.last_seen_unix_nano = snapshot, self._clock()
            live.kill_switch_unread = False
            if snapshot.time_unix_nano:
                live.clock_readings.append(snapshot.time_unix_nano - live.last_seen_unix_nano)
            live.unaccounted = _unaccounted(live.account, snapshot)
            if snapshot.HasField("engine"):
                self.roles.note(live.source, snapshot.engine)

    def kill_switch_changed(self, epoch: int) -> None:
        """Note that what the source's last snapshot says about the kill switch precedes its last change."""
        live = self._sources.get(epoch)
        if live is not None:
            live.kill_switch_unread = True

    def committed(self, epoch: int, batch: Batch) -> None:
        """Apply what a committed batch reports about its source."""
        live = self._sources.get(epoch)
        if live is None:
            return
        live.watermark, live.last_seen_unix_nano = batch.seq, self._clock()
        if live.account is not None:
            live.account = live.account.plus(batch)
        for drop in (*batch.drops, *batch.tombstone.lost):
            _count(live.drops, (drop.reason, drop.kind), drop.count)
        for error in batch.guard_errors:
            _count(live.guard_errors, (error.hook, error.error_class), error.count)

    def get(self, epoch: int) -> LiveSource | None:
        """Return a source by its epoch."""
        return self._sources.get(epoch)

    def sources(self) -> list[LiveSource]:
        """Return all sources, in the order in which they came."""
        return list(self._sources.values())

    def connected_engines(self) -> set[EngineKey]:
        """Return the keys of the sources that are connected."""
        return {live.source.key for live in self._sources.values() if live.connected}

    def engines(self) -> list[EngineView]:
        """Return all engines, sorted by key; an API process alone is no engine."""
        by_key: defaultdict[EngineKey, list[LiveSource]] = defaultdict(list)
        shared: defaultdict[str, list[LiveSource]] = defaultdict(list)
        for live in self._sources.values():
            if live.source.key.engine:
                by_key[live.source.key].append(live)
            else:
                shared[live.source.key.server].append(live)
        return [_view(key, by_key[key], shared[key.server]) for key in sorted(by_key)]


def _unaccounted(account: Account | None, snapshot: Snapshot) -> int | None:
    emitter = snapshot.emitter
    if account is None or not emitter.HasField("produced_entries"):
        return None
    return emitter.produced_entries - emitter.pending_entries - account.stored - account.lost


def _place(source: Source) -> tuple[EngineKey, str, int]:
    return source.key, source.process, source.rank


def _count(counter: Counter[tuple[str, str]], key: tuple[str, str], count: int) -> None:
    if key in counter or len(counter) < _MAX_KINDS:
        counter[key] += count


def _view(key: EngineKey, own: list[LiveSource], shared: list[LiveSource]) -> EngineView:
    cores = [live for live in own if live.source.process == ENGINE_CORE]
    # Of several (one away, its successor here) the connected one, then the one seen last.
    core = max(cores or own, key=lambda live: (live.connected, live.last_seen_unix_nano))
    snapshot = core.snapshot if cores else None
    facts = snapshot.engine if snapshot is not None and snapshot.HasField("engine") else None
    source = core.source
    connected = any(live.connected for live in cores or own)
    return EngineView(
        key=key,
        connected=connected,
        # One that begins a new epoch may have two for a moment.
        cores=len({(live.source.pid, live.source.start_time_unix_nano) for live in cores if live.connected}),
        said_goodbye=not connected and core.said_goodbye,
        start_time_unix_nano=source.start_time_unix_nano,
        last_seen_unix_nano=max(live.last_seen_unix_nano for live in own),
        role=source.role,
        role_guessed=source.role_guessed,
        model=source.model,
        vllm_version=source.vllm_version,
        labels=_labels(own, source),
        facts=facts,
        policy=snapshot.policy if snapshot is not None and snapshot.HasField("policy") else None,
        paused=snapshot is not None and snapshot.paused,
        sources=(*own, *shared),
    )


def _labels(own: list[LiveSource], core: Source) -> dict[str, str]:
    labels: dict[str, str] = {}
    for live in own:
        labels.update(live.source.labels)
    return {**labels, **core.labels}


def snapshots(registry: Registry) -> Iterator[tuple[Source, Snapshot]]:
    """Yield the sources that are connected and have sent a snapshot, with it."""
    for live in registry.sources():
        if live.connected and live.snapshot is not None:
            yield live.source, live.snapshot
