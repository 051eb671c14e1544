"""Whether an engine can be ended: what others still need of it, and who waits for that. Pure.

Of an engine that gives state away, requests count, too, that it has not computed yet: they become leases. Of a decode
engine they do not: vLLM's own ``--shutdown-timeout`` lets them end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.views import text
from penstock.agent.views.engines import cores, is_stopped
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import snapshot_pb2 as snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.proto.v1 import admin_pb2 as admin

SILENT_SECONDS: Final = 5.0
"""An engine reports once a second; what it said longer ago is not known to hold now."""

# Engines and addresses that a sentence names.
_NAMED = 3
_HOLDERS = {
    snapshots.BLOCK_HOLDER_LEASE: "unread lease",
    snapshots.BLOCK_HOLDER_SAVE: "unfinished save",
}


class Need(NamedTuple):
    """Something of an engine that would be lost with it.

    Attributes:
        what: in words, for one: ``unread lease``.
        number: how many.
        oldest_unix_nano: since when the oldest lasts; 0 where it is not known.
        whom: who waits for it, or with whom it goes on; empty where that is not known.

    """

    what: str
    number: int
    oldest_unix_nano: int = 0
    whom: str = ""

    def words(self, now: float) -> str:
        """Return it as a part of a sentence."""
        whom = f" {self.whom}" if self.whom else ""
        oldest = f", the oldest since {text.ago(self.oldest_unix_nano, now)}" if self.oldest_unix_nano else ""
        return f"{text.count(self.number, self.what)}{whom}{oldest}"


class DrainState(NamedTuple):
    """Whether an engine is drained.

    Attributes:
        engine: its name.
        needs: what is needed of it; where *unknown* is empty, all of that.
        unknown: why it is not known what is needed of it; empty where it is known.

    """

    engine: str
    needs: Sequence[Need] = ()
    unknown: str = ""

    @property
    def drained(self) -> bool:
        """Whether it is known that nothing of it is needed."""
        return not self.needs and not self.unknown

    def sentence(self, now: float) -> str:
        """Return it as a sentence, without a full stop."""
        if self.unknown:
            return f"engine {self.engine}: {self.unknown}"
        if not self.needs:
            return f"engine {self.engine} is drained"
        return f"engine {self.engine} is not drained: {'; '.join(each.words(now) for each in self.needs)}"


def last_report(engine: admin.Engine) -> int:
    """Return when an engine's scheduler last reported, nanoseconds by the agent's clock; 0 if none is connected."""
    return min((source.last_seen.ToNanoseconds() for source in cores(engine)), default=0)


def drain_states(
    engines: Iterable[admin.Engine],
    holders: Iterable[admin.HolderSummary],
    among: Sequence[admin.Engine],
    silence: Callable[[admin.Engine], float],
) -> list[DrainState]:
    """Return the state of each of *engines*.

    Args:
        engines: those that may be ended.
        holders: who holds their blocks.
        among: all engines that are known; requests of these may wait for KV of *engines*.
        silence: for how many seconds an engine's scheduler has not reported, by one clock.

    """
    rows = list(holders)
    return [
        _state(engine, [row for row in rows if row.key == engine.key], among, silence) for engine in engines
    ]


def _state(
    engine: admin.Engine,
    holders: Iterable[admin.HolderSummary],
    among: Iterable[admin.Engine],
    silence: Callable[[admin.Engine], float],
) -> DrainState:
    name = text.engine(engine.key)
    if is_stopped(engine):
        # It ended on purpose, and nobody can read from it any more.
        return DrainState(name)
    if unknown := _unknown(engine, silence):
        return DrainState(name, (), f"what it holds is not known; {unknown}")
    return DrainState(name, tuple(_needs(engine, holders, _waiting_words(engine, among))))


def _unknown(engine: admin.Engine, silence: Callable[[admin.Engine], float]) -> str:
    """Return why it is not known what an engine holds; empty where it is."""
    if not last_report(engine):
        return "its scheduler is not connected"
    if (seconds := silence(engine)) > SILENT_SECONDS:
        return f"its scheduler has not reported for {text.age(seconds)}"
    return "" if engine.HasField("queue") else "its scheduler does not report its queue"


def _needs(engine: admin.Engine, holders: Iterable[admin.HolderSummary], waiting: str) -> Iterator[Need]:
    for row in holders:
        if row.holder in _HOLDERS:
            whom = waiting if row.holder == snapshots.BLOCK_HOLDER_LEASE else ""
            yield Need(_HOLDERS[row.holder], row.requests, row.oldest.ToNanoseconds(), whom)
    for moving in engine.in_flight:
        channel = text.word(common.Channel, moving.channel).upper()
        whom = f"with {moving.peer.address}" if moving.peer.address else ""
        yield Need(f"{channel} transfer", moving.count, moving.oldest_start_time_unix_nano, whom)
    if engine.role != common.ROLE_DECODE:
        rows = engine.queue.waiting
        requests = engine.queue.running + sum(row.count for row in rows)
        if requests:
            starts = [row.oldest_start_time_unix_nano for row in rows if row.oldest_start_time_unix_nano]
            yield Need("request", requests, min(starts, default=0), "in its scheduler")


def _waiting_words(engine: admin.Engine, among: Iterable[admin.Engine]) -> str:
    """Return who waits for KV of *engine*, by the requests that the engines *among* report."""
    address = engine.facts.side_channel
    names = [text.engine(other.key) for other in among if address and address in _awaited(other)]
    if not names:
        return "that no engine known here waits for"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"that {', '.join(names[:_NAMED])}{more} {'waits' if len(names) == 1 else 'wait'} for"


def _awaited(engine: admin.Engine) -> set[str]:
    """Return the addresses that requests of *engine* wait for, or load from."""
    return {row.peer.address for row in engine.deferred} | {row.peer.address for row in engine.in_flight}
