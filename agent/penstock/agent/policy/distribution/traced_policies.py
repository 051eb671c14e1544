"""What the trace export asks: the policies behind a hash in an event of the log, and each engine's sample ratio."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.agent.parsing import Target
from penstock.agent.policy.manifest import effective_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.model import EngineKey, PolicySource, Source
    from penstock.agent.policy.distribution.feed import PolicyFeed
    from penstock.agent.policy.store import Store


FIELD = "telemetry.traceSampleRatio"
# Maximum age of a looked-up ratio.
_FRESH_SECONDS = 1.0
_MAX_ENGINES = 1_024


class PolicySources:
    """Finds the policies that were merged for the engine of an event. Any thread."""

    def __init__(self, store: Store, feed: PolicyFeed) -> None:
        """Read *store*; *feed* has the labels of the engines."""
        self._store = store
        self._feed = feed

    def now(self, key: EngineKey, hash_: str) -> tuple[PolicySource, ...]:
        """Return the policies behind *hash_*, which is or should be in force in engine *key* now."""
        subscriber = self._feed.subscriber(key)
        if not hash_ or subscriber is None:
            return ()
        return self._feed.policies(subscriber, hash_)

    def __call__(self, source: Source, hash_: str, unix_nano: int) -> tuple[PolicySource, ...]:
        """Return the policies behind *hash_* in the engine of *source* at that time; empty if they are not known."""
        if not hash_:
            return ()
        labels = dict(source.labels)
        if source.role != "unspecified":
            labels.setdefault("role", source.role)
        found = self._store.sources(hash_, Target(source.key, source.model, labels), unix_nano)
        # A subscription has more labels than the Hello.
        subscriber = self._feed.subscriber(source.key)
        if not found and subscriber is not None:
            found = self._store.sources(hash_, subscriber.target, unix_nano)
        return found


class SampleRatios:
    """Looks up the ratio in the policies that select a source's engine. One thread."""

    def __init__(self, store: Store, feed: PolicyFeed, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._feed = feed
        self._clock = clock
        self._known: dict[EngineKey, tuple[float, float | None]] = {}

    def __call__(self, source: Source) -> float | None:
        """Return the ratio in force, from 0 to 1; None where no policy sets one."""
        now = self._clock()
        until, ratio = self._known.get(source.key, (0.0, None))
        # Also stale if the clock was set back.
        if not until - _FRESH_SECONDS <= now < until:
            if len(self._known) >= _MAX_ENGINES:
                self._known.clear()
            ratio = self._look_up(source, now)
            self._known[source.key] = (now + _FRESH_SECONDS, ratio)
        return ratio

    def _look_up(self, source: Source, now: float) -> float | None:
        subscriber = self._feed.subscriber(source.key)
        # A subscription has more labels than the Hello.
        target = Target(source.key, source.model, source.labels) if subscriber is None else subscriber.target
        manifests = [policy.manifest for policy in self._store.policies()]
        step = effective_schedule(manifests, target, datetime.fromtimestamp(now, UTC), self._store.end_of)[0]
        ratio = step.merged.leaves().get(FIELD)
        return None if ratio is None else float(ratio)
