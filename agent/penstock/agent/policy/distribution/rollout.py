"""How far a change has come: which engines have answered, and what."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.agent.parsing import Selection, Target, select

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from penstock.agent.model import EngineKey
    from penstock.agent.policy.distribution.feed import PolicyFeed
    from penstock.agent.policy.distribution.subscriber import Subscriber
    from penstock.agent.policy.store import Clock

State = Literal["acknowledged", "refused", "waiting", "disconnected", "paused", "contested"]
# What nothing but a change or another engine makes another state.
_FINAL = frozenset({"acknowledged", "refused", "paused", "contested"})

# An engine that came or went without the feed's knowledge is seen this late, in seconds.
_LOOK_AGAIN = 1.0
# Engines answer in a burst. Whoever follows sees it this often, in seconds, and its end at once: to show it takes the
# time in which the next engines are to be heard.
_SHOW = 0.1
_PACE = 0.002


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """An engine that the registry knows, whether or not it has subscribed.

    Attributes:
        cores: how many EngineCores go by its name now.

    """

    target: Target
    connected: bool
    cores: int = 1


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """Where one engine stands.

    Attributes:
        hash: in force by the engine's own word; empty for vLLM's own configuration.
        error: why it refused (while it pauses: the policy), or what it is that keeps it waiting.
        took: seconds from when that was wanted to the answer; None without one.
        wanted: hash that the engine is to have, in force only if it has acknowledged that and is not paused.

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
    """A rollout as a whole; ``done`` once every engine that is there has answered."""

    engines: tuple[EngineProgress, ...]
    done: bool


async def follow_rollout(
    feed: PolicyFeed,
    known: Callable[[], Iterable[KnownEngine]],
    selection: Selection,
    *,
    within: float,
    clock: Clock,
    pausing: bool = False,
) -> AsyncIterator[Progress]:
    """Yield the progress of the present state: at once, ten times a second while it changes, and at the end.

    Ends when it is done or after *within* seconds. An engine that was gone all
    the time is shown, but not waited for: it gets its policy when it comes back.
    With *pausing* all that counts is that an engine is passive, not its policy.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    awaited: set[EngineKey] = set()
    last: Progress | None = None
    while True:
        seen = feed.changed.version
        engines = rollout_progress(feed, known(), selection, clock(), pausing=pausing)
        awaited |= {engine.key for engine in engines if engine.state != "disconnected"}
        open_ = [engine for engine in engines if engine.key in awaited and not _answered(engine)]
        present = Progress(engines, done=not open_)
        if present != last:
            yield present
            last = present
        left = end - loop.time()
        if present.done or left <= 0:
            return
        seen = await feed.changed.wait(seen, min(left, _LOOK_AGAIN))
        show_at = min(loop.time() + _SHOW, end)
        while not all(_has_answered(feed, engine.key) for engine in open_):
            if (left := show_at - loop.time()) <= 0:
                break
            seen = await feed.changed.wait(seen, left)
            await asyncio.sleep(_PACE)


def rollout_progress(
    feed: PolicyFeed, known: Iterable[KnownEngine], selection: Selection, now: float, *, pausing: bool = False
) -> tuple[EngineProgress, ...]:
    """Return where each selected engine stands, ordered by key."""
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
            found.append(_of_subscriber(subscriber, now, pausing=pausing))
        elif item is not None and item.connected:
            found.append(EngineProgress(target.key, "waiting", error="it has not subscribed to policies"))
        else:
            found.append(EngineProgress(target.key, "disconnected"))
    return tuple(found)


def _of_subscriber(subscriber: Subscriber, now: float, *, pausing: bool) -> EngineProgress:
    key, answer, wanted = subscriber.target.key, subscriber.answer, subscriber.wanted.hash_at(now)
    if answer is None or not subscriber.settled:
        since = subscriber.waiting_since()
        error = "" if since is None or now - since < 1 else "it has not answered the push"
        return EngineProgress(key, "waiting", subscriber.hash_in_force, error, wanted=wanted)
    state: State = "acknowledged"
    if not (pausing and answer.paused):
        state = "refused" if answer.error else "paused" if subscriber.held_back else state
    return EngineProgress(
        key, state, subscriber.hash_in_force, answer.error, answer.field, answer.took, wanted
    )


def _contested(cores: int) -> str:
    return (
        f"{cores} EngineCores go by this name, and a policy reaches one of them at a time; "
        "set PENSTOCK_SERVER in the environment of each vLLM server of the pod"
    )


def _has_answered(feed: PolicyFeed, key: EngineKey) -> bool:
    subscriber = feed.subscriber(key)
    return subscriber is not None and subscriber.connected and subscriber.settled


def _answered(engine: EngineProgress) -> bool:
    return engine.state in _FINAL
