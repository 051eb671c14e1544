"""The delivery of a push: the answer of each engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from penstock.agent.parsing import Selection, Target, select

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from penstock.agent.model import EngineKey
    from penstock.agent.policy.distribution.feed import PolicyFeed
    from penstock.agent.policy.distribution.subscriber import Subscriber
    from penstock.agent.policy.store import Clock

State = Literal["acknowledged", "refused", "waiting", "disconnected", "paused", "contested"]
# States that only a change or another engine ends.
_FINAL = frozenset({"acknowledged", "refused", "paused", "contested"})

# Of a pause.
_ENDED = "the pause ended, by its ttl or a resume, before every process was passive"
_MISSING = "disconnected, while another engine of its server is connected"
# Seconds until a change of the registry is seen, and while the rest of the processes is awaited.
_LOOK_AGAIN = 1.0
_LOOK_AT_PROCESSES = 0.1
# Engines answer in bursts. Progress is yielded this often, seconds, and the end at once: yielding takes time from
# reading answers.
_SHOW = 0.1
_PACE = 0.002


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """An engine of the registry, subscribed or not.

    Attributes:
        cores: number of connected EngineCores of its name.
        processes: number of connected processes that the kill switch treats as it treats the engine: its own, and
            its server's front ends unless they serve an engine that is treated differently.
        settled: number of those that report to be passive with nothing left to send, or to be active, as ordered.
        missing: it is not connected and said no goodbye, while another engine of its server runs on: its process
            hangs, or its stream is broken, and it may serve requests.

    """

    target: Target
    connected: bool
    cores: int = 1
    processes: int = 0
    settled: int = 0
    missing: bool = False


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """The delivery state of one engine.

    Attributes:
        hash: in force as reported by the engine; empty for vLLM's own configuration.
        error: why it refused, or why it is waiting.
        took: seconds from the change to the answer; None without one.
        wanted: desired hash; in force only if acknowledged and not paused.

    """

    key: EngineKey
    state: State
    hash: str = ""
    error: str = ""
    field: str = ""
    took: float | None = None
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of all engines; ``done`` once every connected or missing engine has answered."""

    engines: tuple[EngineProgress, ...]
    done: bool


async def follow_delivery(
    feed: PolicyFeed,
    known: Callable[[], Iterable[KnownEngine]],
    selection: Selection,
    *,
    within: float,
    clock: Clock,
    pausing: bool | None = None,
) -> AsyncIterator[Progress]:
    """Yield the progress at once, ten times a second while it changes, and at the end.

    Ends when done or after *within* seconds. Disconnected engines are listed but not awaited, unless they are missing.

    Args:
        feed: the policy states of all engines.
        known: the engines of the registry.
        selection: the engines to follow.
        within: seconds.
        clock: seconds since the epoch.
        pausing: True for a pause: an engine is done once all its processes are passive, whatever its policy. False
            for the end of one: once they are active and the policy is acknowledged. None for a change of policies,
            which concerns the subscriber only.

    """
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    awaited: set[EngineKey] = set()
    last: Progress | None = None
    while True:
        seen = feed.changed.version
        engines = delivery_progress(feed, known(), selection, clock(), pausing=pausing)
        awaited |= {engine.key for engine in engines if engine.state != "disconnected"}
        open_ = [engine for engine in engines if engine.key in awaited and not _answered(engine)]
        present = Progress(engines, done=not open_)
        if present != last:
            yield present
            last = present
        left = end - loop.time()
        if present.done or left <= 0:
            return
        answered = all(_has_answered(feed, engine.key) for engine in open_)
        pause = _LOOK_AT_PROCESSES if pausing is not None and answered else _LOOK_AGAIN
        seen = await feed.changed.wait(seen, min(left, pause))
        show_at = min(loop.time() + _SHOW, end)
        while not all(_has_answered(feed, engine.key) for engine in open_):
            if (left := show_at - loop.time()) <= 0:
                break
            seen = await feed.changed.wait(seen, left)
            await asyncio.sleep(_PACE)


def delivery_progress(
    feed: PolicyFeed,
    known: Iterable[KnownEngine],
    selection: Selection,
    now: float,
    *,
    pausing: bool | None = None,
) -> tuple[EngineProgress, ...]:
    """Return the state of each selected engine, ordered by key; *pausing* as for :func:`follow_delivery`."""
    connected = {item.target.key: item for item in known}
    targets = {key: item.target for key, item in connected.items()}
    targets |= {subscriber.target.key: subscriber.target for subscriber in feed.subscribers()}
    found = []
    for target in select(targets.values(), selection):
        subscriber = feed.subscriber(target.key)
        item = connected.get(target.key)
        if item is not None and item.cores > 1:
            found.append(EngineProgress(target.key, "contested", error=_contested(item.cores)))
        elif subscriber is not None and subscriber.connected:
            progress = _of_subscriber(subscriber, now, pausing=pausing is True)
            found.append(progress if pausing is None else _of_processes(progress, item, pausing=pausing))
        elif item is not None and item.connected:
            found.append(EngineProgress(target.key, "waiting", error="not subscribed to policies"))
        elif item is not None and item.missing:
            found.append(EngineProgress(target.key, "waiting", error=_MISSING))
        else:
            found.append(EngineProgress(target.key, "disconnected"))
    return tuple(found)


def _of_subscriber(subscriber: Subscriber, now: float, *, pausing: bool) -> EngineProgress:
    key, answer, wanted = subscriber.target.key, subscriber.answer, subscriber.wanted.hash_at(now)
    if answer is None or not subscriber.settled:
        since = subscriber.waiting_since()
        error = "" if since is None or now - since < 1 else "the push is unanswered"
        return EngineProgress(key, "waiting", subscriber.hash_in_force, error, wanted=wanted)
    if pausing and not subscriber.wanted.paused:
        return EngineProgress(key, "refused", subscriber.hash_in_force, _ENDED, wanted=wanted)
    state: State = "acknowledged"
    if not (pausing and answer.paused):
        state = "refused" if answer.error else "paused" if subscriber.held_back else state
    return EngineProgress(
        key, state, subscriber.hash_in_force, answer.error, answer.field, answer.took, wanted
    )


def _of_processes(progress: EngineProgress, item: KnownEngine | None, *, pausing: bool) -> EngineProgress:
    """Return *progress*, waiting while a process of the engine has not said that it follows the kill switch."""
    if progress.state != "acknowledged" or item is None or item.settled >= item.processes:
        return progress
    verb = "is" if item.processes == 1 else "are"
    noun = "process" if item.processes == 1 else "processes"
    state = "passive" if pausing else "active"
    said = f"{item.settled} of {item.processes} {noun} {verb} {state}"
    return replace(progress, state="waiting", error=said)


def _contested(cores: int) -> str:
    return (
        f"{cores} EngineCores share this name, and a policy reaches one of them at a time; "
        "set PENSTOCK_SERVER in the environment of each vLLM server of the pod"
    )


def _has_answered(feed: PolicyFeed, key: EngineKey) -> bool:
    subscriber = feed.subscriber(key)
    return subscriber is not None and subscriber.connected and subscriber.settled


def _answered(engine: EngineProgress) -> bool:
    return engine.state in _FINAL
