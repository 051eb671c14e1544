"""Engines that vanished, that lose entries, or whose clock differs; and an agent that cannot store what they report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.agent.diagnosis.facts import (
    FAILED_SECONDS,
    Confidence,
    Evidence,
    FoundCause,
    LostEntries,
    ended_at,
    first_sign,
    sane,
    words,
)
from penstock.proto.names import ENGINE_CORE, NANOS
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts, Loss, Window
    from penstock.agent.model import EngineKey

# What counts for a process that vanished beside its requests, seconds; what for one that is back.
_GONE_SECONDS, _BACK_SECONDS = 20.0, 10.0
# What it counts for that an account is not whole: nothing is wrong with the engine.
_TELEMETRY_SECONDS = 1.0
# Engines that evidence names.
_NAMED = 3
# What a blind agent counts for, seconds: nothing is wrong with the engines; what comes first is decided by the kind.
_BLIND_SECONDS = 1.0


def engine_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield engines that are gone, and those that the agent cannot see well."""
    yield from _lost(facts)
    yield from _away(facts)
    yield from _entries(facts)
    yield from _clocks(facts)


def _lost(facts: Facts) -> Iterator[FoundCause]:
    present = {words.key_of(each.key): each.connected for each in facts.engines}
    for key in words.keys_of(each.key for each in facts.present.losses):
        losses = _of_engine(facts.present, key)
        if not losses or _is_replaced(facts, key, losses):
            continue
        waits = [
            each
            for each in facts.present.waits
            if each.key == key and each.ending == common.DEFERRAL_ENDING_ENGINE_LOST
        ]
        yield _loss(facts, key, losses, len(waits), connected=present.get(key, False))


def _is_replaced(facts: Facts, key: EngineKey, losses: list[Loss]) -> bool:
    """Return whether other processes than an EngineCore went, and others do their work: a child that ended is no loss."""
    lost = {each.process for each in losses}
    known = any(engine.sources for engine in facts.engines if words.key_of(engine.key) == key)
    return ENGINE_CORE not in lost and known and not lost & _away_of(facts, key, losses[0].time)


def _away_of(facts: Facts, key: EngineKey, lost: int) -> set[str]:
    """Return which kinds of processes of an engine are away since a loss at *lost*, nanoseconds: none came back in between."""
    return {
        source.hello.process
        for engine in facts.engines
        if words.key_of(engine.key) == key
        for source in engine.sources
        if not source.connected and source.last_seen.ToNanoseconds() <= lost
    }


def _of_engine(window: Window, key: EngineKey) -> list[Loss]:
    """Return how often an engine was lost: its EngineCore, else its other processes; none if a server went as a whole."""
    rows = [each for each in window.losses if each.key == key]
    cores = [each for each in window.losses if each.process == ENGINE_CORE]
    if not key.engine and any(each.key.server == key.server for each in cores):
        return []
    return [each for each in cores if each.key == key] or rows


def _loss(facts: Facts, key: EngineKey, losses: list[Loss], lost: int, *, connected: bool) -> FoundCause:
    processes = sorted({each.process for each in losses})
    core = ENGINE_CORE in processes
    # A process that is not its EngineCore and is back is no loss: this one is away.
    back = connected and (core or not _away_of(facts, key, losses[0].time))
    before = _of_engine(facts.before, key)
    left = _left(facts, key, losses[0].time)
    times = f" {len(losses)} times" if len(losses) > 1 else ""
    subject = f"engine {key}" if core else f"{', '.join(processes)} process of engine {key}"
    state = f"{'is connected again' if back else 'is not connected'}{'; its engine has said goodbye since' if left else ''}"
    last = f"{times}, last {words.ago(losses[0].time, facts.now)}"
    # An engine does not outlive its worker: where it goes on, the worker has lost its connection, such as a starved one.
    unsure = connected and not core
    return FoundCause(
        "engine_lost" if core else "process_lost",
        f"the agent lost sight of the {subject}{last}; it {state}"
        if unsure
        else f"{subject} vanished without a goodbye{last}, and {state}",
        (key,),
        (
            Evidence(
                f"{words.count(len(losses), 'loss', 'losses')} ({', '.join(processes)}) in {words.span(facts.present.seconds)}",
                f"{len(before)} in {words.span(facts.before.seconds)}",
            ),
            *([Evidence(f"{words.count(lost, 'request')} waited in it")] if lost else []),
        ),
        requests=lost,
        failed=0,
        other_harm=(_BACK_SECONDS if back else _GONE_SECONDS) * len(losses) + FAILED_SECONDS * lost,
        confidence=Confidence.POSSIBLE if unsure else Confidence.CERTAIN,
        until=ended_at((each.time for each in losses), facts.now) if back else left,
        since=first_sign(facts, (each.time for each in losses), (each.time for each in before)),
        alternatives=(
            "it was killed from outside (out of memory, a node drain): kubectl describe pod has the reason",
            "only its connection to the agent broke: it is then back within seconds",
        ),
        commands=(
            f"agentctl describe engine {key}",
            f"agentctl get events --kind source_lost --since {words.window(facts.present.seconds)}",
        ),
    )


def _left(facts: Facts, key: EngineKey, lost: int) -> int:
    """Return when an engine that had lost a process at *lost* said goodbye and ended, nanoseconds; 0 if it did not."""
    seen = (
        each.last_seen.ToNanoseconds()
        for each in facts.engines
        if words.key_of(each.key) == key and each.said_goodbye and not each.connected
    )
    return next((each for each in seen if each >= lost), 0)


def _away(facts: Facts) -> Iterator[FoundCause]:
    """Yield engines that went before the window, without a goodbye, and are not back.

    Those that went a moment ago are waited for; not by an agent that cannot store their loss.
    """
    awaited = () if facts.blind else facts.awaited
    told = {each.key for each in facts.present.losses}
    away = [
        each
        for each in facts.engines
        if not each.connected and not each.said_goodbye and words.key_of(each.key) not in {*told, *awaited}
    ]
    if not away:
        return
    keys = words.keys_of(words.key_of(each.key) for each in away)
    seen = [each.last_seen.ToNanoseconds() for each in away]
    yield FoundCause(
        "engine_away",
        f"{words.engines(keys)} {'is' if len(keys) == 1 else 'are'} not connected, last seen {words.ago(max(seen), facts.now)}",
        keys,
        (Evidence("no goodbye was received"),),
        other_harm=_GONE_SECONDS * len(keys),
        since=sane(facts, min((each for each in seen if each), default=0)),
        alternatives=("it is gone for good: agentctl forget engine removes it",),
        commands=(f"agentctl describe engine {keys[0]}",),
    )


def _entries(facts: Facts) -> Iterator[FoundCause]:
    """Yield entries that are missing: certain where they are of this time, else possible."""
    lost = LostEntries.of(facts)
    earlier = tuple(
        Evidence(
            f"engine {key}: {words.count(loss.number, 'entry', 'entries')} counted as lost since its process began "
            f"{words.ago(loss.began, facts.now)}"
        )
        for key, loss in list(lost.earlier.items())[:_NAMED]
    )
    if lost.now:
        keys = words.keys_of([*lost.now, *lost.earlier])
        yield FoundCause(
            "entries_lost",
            f"entries of {words.engines(lost.now)} are missing in the log: counts and this diagnosis lack them",
            keys,
            (Evidence(f"{words.count(lost.number, 'entry', 'entries')} counted as lost"), *earlier),
            other_harm=_TELEMETRY_SECONDS,
            confidence=Confidence.CERTAIN,
            alternatives=("a burst that is over: the count then stays as it is",),
            commands=("agentctl doctor",),
        )
    elif earlier:
        keys = words.keys_of(lost.earlier)
        yield FoundCause(
            "entries_lost",
            f"{words.engines(keys)} lost entries since the process began, perhaps before the last "
            f"{words.span(facts.present.seconds)}: counts lack them, and this diagnosis may",
            keys,
            earlier,
            other_harm=_TELEMETRY_SECONDS / 2,
            confidence=Confidence.POSSIBLE,
            alternatives=("they were lost before this time: the count then stays as it is",),
            commands=(f"agentctl describe engine {keys[0]}", "agentctl doctor"),
        )


def _clocks(facts: Facts) -> Iterator[FoundCause]:
    offsets: dict[EngineKey, float] = {}
    for engine in facts.engines:
        for source in engine.sources:
            seconds = source.clock_offset_nano / NANOS
            if (
                source.connected
                and source.HasField("clock_offset_nano")
                and abs(seconds) > limits.CLOCK_SECONDS
            ):
                key = words.key_of(engine.key)
                offsets[key] = max(offsets.get(key, 0.0), seconds, key=abs)
    if offsets:
        worst = max(sorted(offsets), key=lambda key: abs(offsets[key]))
        yield FoundCause(
            "clock_offset",
            f"the clock of {words.engines(offsets)} differs from the agent's by up to "
            f"{words.span(abs(offsets[worst]))}: times of the two do not compare",
            words.keys_of(offsets),
            tuple(Evidence(f"engine {key}: {offsets[key]:+.1f} s") for key in sorted(offsets)[:3]),
            other_harm=_TELEMETRY_SECONDS,
            confidence=Confidence.CERTAIN,
            alternatives=("the engine's process stood still while it reported",),
            commands=("agentctl doctor",),
        )


def agent_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield that the agent is blind."""
    if not facts.blind:
        return
    keys = words.keys_of(words.key_of(each.key) for each in facts.engines)
    yield FoundCause(
        "agent_blind",
        f"the agent cannot store what engines report ({words.cut(facts.blind)}): engines serve without it, and what they do "
        "now is not known",
        keys,
        (
            Evidence(
                "engines keep what they have to report, each up to 32 MiB, and send it once the agent can store it"
            ),
        ),
        other_harm=_BLIND_SECONDS,
        confidence=Confidence.CERTAIN,
        alternatives=("the disk is full, read-only or broken: df and the agent's log tell",),
        commands=("agentctl doctor",),
    )
