"""Counters and histograms, aggregated from the log: each committed batch counts exactly once.

State is whole numbers, so it is the same for any order in which the batches of different sources come (as
long as no metric is at its cap), and a replay from a dump gives what a replay from the beginning gives.
"""

from __future__ import annotations

import json
import threading
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import structlog
from penstock.agent.aio import ThreadYield
from penstock.agent.errors import StateError, UncountableError
from penstock.agent.metrics.batch_counting import (
    EndedByLoss,
    SuspectAnswers,
    Trouble,
    count_events,
    count_losses,
    count_samples,
)
from penstock.agent.metrics.catalogue import BY_NAME, from_log
from penstock.agent.metrics.latencies import (
    PairSpeeds,
    PeerLatencies,
    Signals,
    at_best,
    is_slow,
    with_siblings,
)
from penstock.agent.metrics.series import (
    CAP,
    TOTAL,
    EngineSeries,
    Row,
    Series,
    SeriesBudget,
    sorted_series,
)
from penstock.agent.model import AGENT_PROCESS, EngineKey
from penstock.agent.sources import Account, Accounts

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable

    from penstock.agent.batch import BatchColumns
    from penstock.agent.metrics.catalogue import Metric
    from penstock.agent.metrics.latencies import PairKey, PeerWindows, QueueSample, SignalSlot, Speed
    from penstock.agent.model import Source


_log = structlog.get_logger(__name__)

_W = TypeVar("_W", PeerLatencies, PairSpeeds)
# Bytes of a saved state once it is unpacked: several times what the caps allow, and no more than an agent can hold.
_MAX_SAVED = 512 << 20
_FORGOTTEN = "forgotten"


class EngineRows(NamedTuple):
    """A copy of one engine's series.

    Attributes:
        last_entry_unix_nano: time of the newest entry; 0 if none had one.

    """

    key: EngineKey
    last_entry_unix_nano: int
    rows: dict[Metric, list[Row]]


class Aggregator:
    """The counters and histograms of all engines. Thread-safe.

    Args:
        cap: label sets that a metric may have in an engine, see `Series`.
        total: label sets that all may have together.

    """

    VERSION = 2

    def __init__(self, cap: int = CAP, total: int = TOTAL) -> None:
        self._cap = cap
        self._total = total
        self._room = SeriesBudget(total)
        self._lock = threading.Lock()
        self._engines: dict[EngineKey, EngineSeries] = {}
        self._accounts = Accounts()
        self._ended = EndedByLoss()
        self._suspects = SuspectAnswers()
        self._latencies = PeerLatencies()
        self._speeds = PairSpeeds()
        # Not saved: what an agent did not see is not known. With a lock of their own, as a dump holds the other for long, and
        # the loop notes queues meanwhile.
        self._signals = Signals()
        self._signals_lock = threading.Lock()

    def apply(self, source: Source, contents: BatchColumns) -> None:
        """Count a committed batch: in the order of the log, once each. It has passed the limits of the ingest.

        Raises:
            UncountableError: entries of it cannot be counted, by an error of ours; all others were, and a replay
                counts the same.

        """
        troubles: list[Trouble] = []
        batch = contents.batch
        with self._lock:
            # What the log holds is stored, whether or not it can be counted.
            self._accounts.apply(source.epoch, batch)
            ended = self._ended.seconds(source, contents)
            if source.process == AGENT_PROCESS and _FORGOTTEN in contents.groups:
                self._forget(source.key, contents)
            engine = self._engines.get(source.key)
            if engine is None:
                if source.process == AGENT_PROCESS and not batch.drops:
                    # The agent's own words about an engine that was forgotten do not bring it back, but entries that a
                    # damaged state has lost are counted, whatever else it has lost.
                    return
                engine = self._engines[source.key] = EngineSeries(self._cap, self._room)
            count_events(engine, contents, ended, troubles)
            for reason, number in self._suspects.new(source.key, contents).items():
                engine.add(from_log.SUSPECT_ANSWERS, (reason,), number, engine.time)
            count_samples(engine, contents, troubles)
            count_losses(engine, batch)
            if source.process != AGENT_PROCESS:
                self._apply_latencies(source.key, contents, troubles)
        if troubles:
            kinds = sorted({each.kind for each in troubles})
            raise UncountableError(f"{len(troubles)} of its entries: {', '.join(kinds)}") from troubles[
                0
            ].error

    def _apply_latencies(self, key: EngineKey, contents: BatchColumns, troubles: list[Trouble]) -> None:
        try:
            self._latencies.apply(key, contents)
            self._speeds.apply(key, contents)
            with self._signals_lock:
                self._signals.apply(key, contents)
        except Exception as error:  # noqa: BLE001  (the windows miss this batch; the counters have it)
            troubles.append(Trouble("peer windows", error))

    def _forget(self, key: EngineKey, contents: BatchColumns) -> None:
        for _, event in contents.in_order((_FORGOTTEN,)):
            peer = event.forgotten.peer.address if event.forgotten.HasField("peer") else None
            self._latencies.forget(key, peer)
            self._speeds.forget(key, peer)
            engine = self._engines.get(key)
            if engine is None:
                return
            for series in engine.series.values():
                if event.forgotten.HasField("peer"):
                    series.forget_peer(event.forgotten.peer.address)
                else:
                    series.clear()
            if not event.forgotten.HasField("peer"):
                del self._engines[key]
                with self._signals_lock:
                    self._signals.forget(key)

    def account(self, epoch: int) -> Account | None:
        """Return how many entries of a source were counted; None if that is not known from its first batch on."""
        with self._lock:
            return self._accounts.get(epoch)

    def engines(self, metrics: Collection[Metric] | None = None, *, idle: bool = False) -> list[EngineRows]:
        """Return a consistent copy, ordered by engine: of all series, or of those of *metrics* only.

        With *idle*, those of *metrics* that are idle and not exposed are there, too.
        """
        with self._lock:
            return [
                EngineRows(
                    key,
                    engine.time,
                    engine.rows() if metrics is None else engine.rows_of(metrics, idle=idle),
                )
                for key, engine in sorted(self._engines.items())
            ]

    def rows_of_peers(
        self, key: EngineKey, metrics: Collection[Metric], peers: Container[str]
    ) -> dict[Metric, list[Row]]:
        """Return a consistent copy of the series of *metrics* that are about *peers* of an engine."""
        with self._lock:
            engine = self._engines.get(key)
            return {} if engine is None else engine.rows_of_peers(metrics, peers)

    def newest_of_peers(self, key: EngineKey, metrics: Collection[Metric]) -> dict[str, int]:
        """Return the peers that *metrics* name in an engine, with the time of each one's newest entry, nanoseconds."""
        with self._lock:
            engine = self._engines.get(key)
            return {} if engine is None else engine.newest_of_peers(metrics)

    def known(self) -> list[EngineKey]:
        """Return all engines that the log has named and not forgotten."""
        # Without the lock, which a dump holds for long: this is asked on the loop, where the aggregator is changed.
        return sorted(self._engines.copy())

    def counting_peer(self, peer: str) -> list[EngineKey]:
        """Return the engines that have counted something with *peer*."""
        with self._lock:
            return [key for key, engine in sorted(self._engines.items()) if engine.knows_peer(peer)]

    def peer_windows(self, key: EngineKey, peer: str, now: int) -> PeerWindows | None:
        """Return how long *peer* took an engine lately, before *now* (nanoseconds); None if that is not known."""
        with self._lock:
            return self._latencies.windows(key, peer, now)

    def timed_peers(self) -> list[tuple[EngineKey, str]]:
        """Return the peers that :meth:`peer_windows` knows."""
        with self._lock:
            return self._latencies.known()

    def pair_speeds(self, key: EngineKey, now: int, look: float = 0.0) -> dict[PairKey, Speed]:
        """Return how fast an engine's transfers were in the 15 minutes before *now* (nanoseconds), by peer and rank.

        Their durations run until the engine looks: a slow pair is as slow as it is at best. Where the engine does not tell of
        its looks, they are *look* seconds apart (0 for not known).
        """
        with self._lock:
            pairs = self._speeds.pairs(key, now)
        found: dict[PairKey, Speed | None] = {}
        for pair in pairs:
            # One takes a third of a millisecond: what is counted meanwhile waits for no more than that.
            with self._lock:
                found[pair] = self._speeds.speed(pair, now)
        speeds = with_siblings(found)
        for pair, speed in speeds.items():
            took = 0.0
            if look and speed.most is None and is_slow(speed):
                windows = self.peer_windows(key, pair.peer, now)
                took = windows.transfers.newest if windows is not None else 0.0
            speeds[pair] = at_best(speed, took, look)
        return speeds

    def note_queue(self, key: EngineKey, when: int, queue: QueueSample | None) -> None:
        """Note that an engine was seen at *when* (nanoseconds by its clock), and what it had, if it tells."""
        with self._signals_lock:
            self._signals.note(key, when, queue)

    def signals(self, key: EngineKey, first: int, last: int) -> dict[int, SignalSlot] | None:
        """Return the known slots of an engine by index, from *first* to *last*; None without room for it."""
        with self._signals_lock:
            return self._signals.slots(key, first, last) if self._signals.knows(key) else None

    def refill_signals(self, batches: Iterable[tuple[Source, BatchColumns]]) -> None:
        """Replace the slots by those of *batches*, which the log holds."""
        signals = Signals()
        for source, contents in batches:
            # One that cannot be counted is missing, as it is among the counters.
            with suppress(Exception):
                if source.process != AGENT_PROCESS:
                    signals.apply(source.key, contents)
        with self._signals_lock:
            self._signals = signals

    def dump(self) -> bytes:
        """Return the whole state: compressed JSON with a version. On a thread of its own it lets others run."""
        yield_now = ThreadYield()
        with self._lock:
            engines = _each(
                (_engine_text(key, engine) for key, engine in sorted(self._engines.items())), yield_now
            )
            accounts, ended = _json(self._accounts.dump()), _json(self._ended.dump())
            suspects = _json(self._suspects.dump())
            peers = _each(map(_json, self._latencies.dump()), yield_now)
            speeds = _each(map(_json, self._speeds.dump()), yield_now)
        pieces = (
            f'{{"version":{self.VERSION},"engines":[', *engines,
            f'],"accounts":{accounts},"ended":{ended},"late":{suspects},"peers":[', *peers,
            '],"speeds":[', *speeds, "]}",
        )  # fmt: skip
        # Each gives the interpreter away while it is compressed.
        stream = zlib.compressobj(1)
        return b"".join((*(stream.compress(each.encode()) for each in pieces), stream.flush()))

    def load(self, blob: bytes) -> None:
        """Restore the state that :meth:`dump` returned; a removed metric is left out, a new one starts at 0.

        Raises:
            StateError: it is damaged or of another shape; nothing has changed. Replay the log instead.

        """
        try:
            state = json.loads(_unpacked(blob))
            version = state["version"]
            if version != self.VERSION:
                raise StateError(
                    f"the saved metrics have version {version}, this agent writes {self.VERSION}; replay the log instead"
                )
            room = SeriesBudget(self._total)
            engines = {EngineKey(*row["key"]): self._load_engine(row, room) for row in state["engines"]}
            accounts = Accounts.load(state["accounts"])
            ended = EndedByLoss(state["ended"])
            suspects = SuspectAnswers(state.get("late", ()))
            latencies = _load_windows(PeerLatencies(), state.get("peers", ()))
            speeds = _load_windows(PairSpeeds(), state.get("speeds", ()))
        except (zlib.error, ValueError, KeyError, TypeError) as error:
            raise StateError(f"the saved metrics cannot be used ({error}); replay the log instead") from error
        with self._lock:
            self._engines, self._accounts, self._room = engines, accounts, room
            self._ended, self._suspects = ended, suspects
            self._latencies, self._speeds = latencies, speeds

    def _load_engine(self, row: dict[str, Any], room: SeriesBudget) -> EngineSeries:
        engine = EngineSeries(self._cap, room)
        engine.time = row["time"]
        for name, series in row["series"].items():
            metric = BY_NAME.get(name)
            if metric is not None:
                engine.series[metric] = Series.load(metric, series, self._cap, room)
        return engine


def _unpacked(blob: bytes) -> bytes:
    """Return what was compressed.

    Raises:
        ValueError: it is cut, or larger than any agent writes: it may be of a bundle, which anybody may have made.
        zlib.error: it is damaged.

    """
    stream = zlib.decompressobj()
    text = stream.decompress(blob, _MAX_SAVED + 1)
    if len(text) > _MAX_SAVED:
        raise ValueError(f"they have more than {_MAX_SAVED >> 20} MiB")
    if not stream.eof:
        raise ValueError("they are cut")
    return text


def _load_windows(windows: _W, rows: Any) -> _W:
    """Return *windows* with *rows*; empty ones if another version saved them or none: the counters matter more."""
    try:
        windows.load(rows)
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        _log.warning("the saved windows of peers cannot be used; they begin empty", reason=repr(error))
    return windows


def _each(texts: Iterable[str], yield_now: ThreadYield) -> list[str]:
    """Return the items of a JSON list, with its commas, each made after the others have had their turn."""
    found: list[str] = []
    for text in texts:
        found.append(f",{text}" if found else text)
        yield_now()
    return found


def _engine_text(key: EngineKey, engine: EngineSeries) -> str:
    """Return an engine as JSON, encoded in small pieces: the encoder lets no other thread run while it works."""
    series = [
        f"{_json(metric.name)}:{_json(series.dump())}" for metric, series in sorted_series(engine.series)
    ]
    return f'{{"key":{_json(key)},"time":{engine.time},"series":{{{",".join(series)}}}}}'


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
