"""Looks once a second which stalls there are: histories and hysteresis around the detectors."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog
from penstock.agent.stalls import detectors, scheduler_detectors
from penstock.agent.stalls.process_state import (
    CountHistory,
    EngineState,
    LookIntervals,
    ProcessState,
    Reading,
)
from penstock.agent.stalls.stall import EndedStalls, Limits, Stall, StallKind
from penstock.proto.names import ENGINE_CORE, NANOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.agent.model import EngineKey
    from penstock.agent.sources import LiveSource

_SECONDS: Final = 1.0
# Half a millisecond, and then as long as a thread takes that waits for the interpreter.
_AT_ONCE: Final = 8
_REST_SECONDS: Final = 0.001
_log = structlog.get_logger(__name__)


class StallWatch:
    """The stalls of all engines. :meth:`look` runs on the loop; its results may be read from any thread.

    Attributes:
        now: the stalls of each engine that has some.
        ended: those that are over since some minutes, in the past tense.
        look_seconds: how long passes between two looks of an engine's workers at their transfers, where that is known.

    """

    def __init__(
        self,
        sources: Callable[[], Iterable[LiveSource]],
        clock: Callable[[], float],
        limits: Limits | None = None,
    ) -> None:
        """Watch what *sources* returns, by a *clock* of seconds since the epoch."""
        self._sources = sources
        self._clock = clock
        self._limits = limits or Limits()
        self._begin = clock()
        self._histories: dict[int, CountHistory] = {}
        self._looks: dict[int, LookIntervals] = {}
        self.now: Mapping[EngineKey, tuple[Stall, ...]] = {}
        self.ended = EndedStalls()
        self.look_seconds: Mapping[EngineKey, float] = {}

    async def keep_looking(self) -> None:
        """Look once a second, until cancelled; the loop rests after any eight engines."""
        while True:
            try:
                for number, _ in enumerate(self._each_engine(), 1):
                    if number % _AT_ONCE == 0:
                        await asyncio.sleep(_REST_SECONDS)
            except Exception:  # noqa: BLE001  (a bug must not end the loop)
                _log.exception("stall detection failed; the last result stays")
            await asyncio.sleep(_SECONDS)

    def look(self) -> None:
        """Read what the sources say now."""
        for _ in self._each_engine():
            pass

    def _each_engine(self) -> Iterator[None]:
        """Look at one engine at a step; all that is found is there after the last."""
        now = self._clock()
        engines: defaultdict[EngineKey, list[LiveSource]] = defaultdict(list)
        for live in self._sources():
            if live.source.key.engine:
                engines[live.source.key].append(live)
        present: dict[int, CountHistory] = {}
        found: dict[EngineKey, tuple[Stall, ...]] = {}
        looks: dict[int, LookIntervals] = {}
        seconds: dict[EngineKey, float] = {}
        seen: dict[EngineKey, float] = {}
        for key, sources in engines.items():
            states = [self._read(live, now) for live in sources]
            present |= {state.live.source.epoch: state.history for state in states}
            found[key] = self._stalls(key, EngineState(now, states, self._begin))
            looked = {live.source.epoch: self._looked(live) for live in sources if live.connected}
            looks |= looked
            seen[key] = _seen(sources, now, self._limits)
            seconds[key] = max((each.seconds for each in looked.values()), default=0.0)
            yield
        self._histories, self._looks = present, looks
        self.look_seconds = {key: each for key, each in seconds.items() if each}
        self._report(found)
        self.ended.update(self.now, found, seen, now)
        self.now = {key: stalls for key, stalls in found.items() if stalls}

    def _read(self, live: LiveSource, now: float) -> ProcessState:
        history = self._histories.get(live.source.epoch) or CountHistory(self._limits.window)
        process = ProcessState(live, history)
        snapshot = process.snapshot
        if snapshot is not None:
            history.add(Reading.of(snapshot.progress, now))
            history.scheduler.add(snapshot)
        elif not live.connected or live.snapshot is not None:
            # What a pause or an absence hides is no silence of what is counted.
            return ProcessState(live, CountHistory(self._limits.window))
        return process

    def _looked(self, live: LiveSource) -> LookIntervals:
        looks = self._looks.get(live.source.epoch) or LookIntervals()
        looks.add(live)
        return looks

    def _stalls(self, key: EngineKey, engine: EngineState) -> tuple[Stall, ...]:
        before = {(each.kind, each.peer): each for each in self.now.get(key, ())}
        limits = self._limits
        params_missing = (StallKind.NO_TRANSFER_PARAMS, "") in before
        merged: dict[tuple[StallKind, str], Stall] = {}
        for stall in (
            *detectors.loads_not_started(engine, limits),
            *detectors.loads_missing(engine, limits),
            *detectors.no_transfer_params(engine, limits, present=params_missing),
            *detectors.rebalances(engine, limits),
            *detectors.calls_stuck(engine, limits),
            *detectors.step_stuck(engine, limits),
            *detectors.threads_dead(engine, limits),
            *detectors.workers_silent(engine, limits),
            *scheduler_detectors.standstills(engine, limits),
        ):
            place = (stall.kind, stall.peer)
            earlier = merged.get(place) or before.get(place)
            count = stall.count + merged[place].count if place in merged else stall.count
            since = min(stall.since, earlier.since) if earlier is not None else stall.since
            merged[place] = replace(stall, since=since, count=count)
        return tuple(merged.values())

    def _report(self, found: Mapping[EngineKey, tuple[Stall, ...]]) -> None:
        """Log each stall that begins, and each that ends."""
        for key in self.now.keys() | found.keys():
            before = {(each.kind, each.peer) for each in self.now.get(key, ())}
            after = {(each.kind, each.peer): each for each in found.get(key, ())}
            for place, stall in after.items():
                if place not in before:
                    _log.warning("stall", engine=str(key), kind=str(stall.kind), what=stall.sentence)
            for kind, peer in before - after.keys():
                _log.info("stall is over", engine=str(key), kind=str(kind), peer=peer)


def _seen(sources: Iterable[LiveSource], now: float, limits: Limits) -> float:
    """Return until when an engine's processes have told what they do; 0 where that is not known now."""
    connected = [live for live in sources if live.connected]
    if connected:
        cores = [live for live in connected if live.source.process == ENGINE_CORE]
        heard = len(cores) == 1 and now - cores[0].last_seen_unix_nano / NANOS < limits.silent / 2
        told = all(live.snapshot is not None and not live.snapshot.paused for live in connected)
        return now if heard and told else 0.0
    last = max(sources, key=lambda live: live.last_seen_unix_nano)
    return last.last_seen_unix_nano / NANOS if last.said_goodbye else 0.0
