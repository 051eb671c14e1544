"""The policies behind a hash in an event of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.parsing import Target

if TYPE_CHECKING:
    from penstock.agent.model import EngineKey, PolicySource, Source
    from penstock.agent.policy.distribution.feed import PolicyFeed
    from penstock.agent.policy.store import Store


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
