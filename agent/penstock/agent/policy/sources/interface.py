"""The interface of a policy source.

A source reads manifests from one place and hands over **all** of them, again after every change, to its sink. The sink
(:class:`~penstock.agent.policy.sources.follower.SourceFollower`) checks, merges and stores them. So a source has no
state but its connection:

- it runs on the agent's loop in one task, for ever; an exception of :meth:`ManifestSource.run` is logged and the source
  starts again;
- it calls :meth:`SourceSink.connected` when it has reached its place, and :meth:`SourceSink.away` when it has lost it;
  what it handed over last stays in force meanwhile, also over restarts of the agent;
- it never hands over a set that it could not read completely. A manifest that it cannot decode is an item with a
  refusal: the last good one of that name stays in force;
- it bounds what it reads: at most :data:`MAX_ITEMS` items of at most :data:`MAX_ITEM_BYTES` bytes each. More items are
  refused as a whole;
- it decodes on a thread, and an item once: who may write one policy must not stop the loop, nor the other policies. An
  item that is as it was is the same object, or equal.

The owner of a policy in the store is the source's name; for files it is ``file:`` and the file's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

# As the store: an import of it would slow down each start.
MAX_ITEMS = 256
MAX_ITEM_BYTES = 64 * 1024
# Shown refusals of one source, and the length of each sentence.
MAX_REFUSALS = 16
MAX_SENTENCE = 300

CONNECTING = "connecting"
CONNECTED = "connected"
AWAY = "away"


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One manifest of a source.

    Attributes:
        document: the decoded manifest; None if it could not be decoded.
        revision: of this manifest at its place; empty if the place has none.
        refusal: why there is no document; empty if there is one.
        waits: it is not decoded yet, since others take long; the last good one of its name stays in force.

    """

    document: object = None
    revision: str = ""
    refusal: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class SourceSet:
    """All manifests of a source at one revision; *items* by policy name."""

    items: Mapping[str, SourceItem] = field(default_factory=dict)
    revision: str = ""


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of one source.

    Attributes:
        state: ``connecting``, ``connected`` or ``away``.
        since: when that state began, seconds since the epoch.
        revision: of the last set in force; empty for none since the start of the agent.
        error: why it is away, or why its last set is not in force; empty for neither.
        accepted: how many of its policies are in the store.
        refused: a sentence by name, of each manifest that is not in force.
        changes: sets that changed the store since the start of the agent.

    """

    name: str
    kind: str
    state: str = CONNECTING
    since: float = 0.0
    revision: str = ""
    error: str = ""
    accepted: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    changes: int = 0


class SourceSink(Protocol):
    """What a source calls, on the loop."""

    def connected(self) -> None:
        """Note that the source has reached its place."""

    def away(self, error: str) -> None:
        """Note that it has not, or no longer; *error* is one sentence without a secret."""

    async def hand_over(self, found: SourceSet) -> float:
        """Put *found* in force.

        Returns:
            0, or the seconds after which the source lists everything anew and hands it over again, even if nothing
            changed: an empty set after a full one needs a second look, and a write may have failed.

        """


class ManifestSource(Protocol):
    """A policy source.

    Attributes:
        name: unique among the sources; the owner of its policies, such as ``nats://host:4222/policies``. No secret.
        kind: ``file``, ``kubernetes`` or ``nats``.

    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102

    async def run(self, sink: SourceSink) -> None:
        """Follow the place and hand over its manifests, until cancelled."""
