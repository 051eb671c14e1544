"""All that a diagnosis is made of: two times of the log, what engines say of themselves now, and since when signs are seen.

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent import limits
from penstock.agent.diagnosis.facts import words
from penstock.proto.names import NANOS
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.agent.diagnosis.facts.records import (
        Closed,
        Delay,
        Failure,
        LeaseEnd,
        LoadEnd,
        Loss,
        Pinning,
        PolicyRefusal,
        Rebalance,
        Sleep,
        Wait,
    )
    from penstock.agent.model import EngineKey, PolicySource
    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.common_pb2 import PolicySource as PolicySourceMessage
    from penstock.proto.v1.snapshot_pb2 import HeldBlocks, SchedulerQueue


@dataclass(slots=True)
class Window:
    """What the log holds of one time, the newest first.

    Attributes:
        seconds: its length.
        read: seconds of it, the newest, of which each rare event was read: failures, outcomes, losses.
        read_requests: likewise of the events that each request has: ended waits and closed requests.

    """

    seconds: float = 0.0
    read: float = 0.0
    read_requests: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    load_ends: list[LoadEnd] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)
    lease_ends: list[LeaseEnd] = field(default_factory=list)
    rebalances: list[Rebalance] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    refusals: list[PolicyRefusal] = field(default_factory=list)
    pinnings: list[Pinning] = field(default_factory=list)
    sleeps: list[Sleep] = field(default_factory=list)
    _closed_by_engine: dict[EngineKey, list[Closed]] | None = field(default=None, init=False, repr=False)

    def closed_of(self, key: EngineKey) -> Sequence[Closed]:
        """Return the closed requests of an engine; the window is whole when it is first asked."""
        if self._closed_by_engine is None:
            self._closed_by_engine = {}
            for each in self.closed:
                self._closed_by_engine.setdefault(each.key, []).append(each)
        return self._closed_by_engine.get(key, ())


class Held(NamedTuple):
    """KV blocks that an engine holds now without computing with them."""

    key: EngineKey
    blocks: HeldBlocks


@dataclass(frozen=True, slots=True)
class Facts:
    """What a diagnosis is made of.

    Attributes:
        now: the agent's clock, nanoseconds.
        present: the time that is looked at.
        before: the time before it, which it is compared with.
        engines: the selected ones, as ``ListEngines`` returns them.
        awaited: those of which a process is away that is not lost yet: it may say goodbye, or come back.
        peers: theirs, as ``ListPeers`` does, without those of which nothing is known beyond that they are there.
        quiet_peers: how many those are.
        queues: what schedulers have now, where that is known, with the requests that they name.
        look_seconds: between two looks of an engine's workers at their transfers, where that is known.
        pairs: of engines, with what differs between them; those of the selected engines.
        suspects: answers of the window that may be wrong.
        suspects_cut: there was too much to read to look for all of them.
        cleared_late_reads: prefill requests whose blocks were read too late, and of whose answers none is wrong.
        policies: the policies behind a hash in an engine, where they are known.
        policy_changes: the newest change of each policy that was changed, a deletion among them; nanoseconds.
        blind: why the agent stores nothing of what engines report now; empty while it does.
        unreadable: damaged batches among those that were read.
        log_begins: seconds ago, if the log begins within the two times, which then are shorter; 0 otherwise.
        past: what is not known of a moment of the past, in words; empty for the present.

    """

    now: int
    present: Window
    before: Window
    engines: Sequence[admin.Engine] = ()
    awaited: Collection[EngineKey] = ()
    peers: Sequence[admin.PeerSummary] = ()
    quiet_peers: int = 0
    drills: Sequence[admin.Drill] = ()
    quarantines: Sequence[admin.Quarantine] = ()
    held: Sequence[Held] = ()
    queues: Mapping[EngineKey, SchedulerQueue] = field(default_factory=dict)
    look_seconds: Mapping[EngineKey, float] = field(default_factory=dict)
    pairs: Sequence[admin.Pair] = ()
    suspects: Sequence[admin.Suspect] = ()
    suspects_cut: bool = False
    cleared_late_reads: Collection[str] = ()
    policies: Mapping[tuple[EngineKey, str], Sequence[PolicySource | PolicySourceMessage]] = field(
        default_factory=dict
    )
    policy_changes: Mapping[str, int] = field(default_factory=dict)
    blind: str = ""
    unreadable: int = 0
    log_begins: float = 0.0
    past: Sequence[str] = ()

    @property
    def harmless_late_reads(self) -> Sequence[EngineKey]:
        """The engines whose blocks were read too late in the window, where no answer is wrong of any of these reads.

        None where the window could not be read whole: there may be other reads.
        """
        if self.unreadable or self.present.read < self.present.seconds - 1:
            return ()
        late = [
            each
            for each in self.present.failures
            if each.mode == common.FAILURE_MODE_LATE_READ and not each.rehearsal
        ]
        harmful = {each.key for each in late if each.request_id not in self.cleared_late_reads}
        return sorted({each.key for each in late} - harmful)


def longest_pause(times: Sequence[int], seconds: float = limits.QUIET_SECONDS) -> float:
    """Return the longest pause, nanoseconds, that is part of a trouble with signs at *times*, sorted and not empty."""
    return max(seconds * NANOS, limits.QUIET_PAUSES * (times[-1] - times[0]) / len(times))


def ended_at(signs: Iterable[int], now: int) -> int:
    """Return the last of *signs*, if none has come for a minute and for three times their usual pause; else 0.

    Args:
        signs: when it was seen, nanoseconds.
        now: nanoseconds.

    """
    times = sorted(signs)
    return times[-1] if times and now - times[-1] >= longest_pause(times) else 0


def first_sign(
    facts: Facts, present: Iterable[int], before: Iterable[int] = (), seconds: float = limits.QUIET_SECONDS
) -> int:
    """Return when a trouble began, nanoseconds: its first sign in the window, or before it without a pause; 0 without any.

    Args:
        facts: whose clock it is.
        present: the times of its signs in the window.
        before: likewise in the time before.
        seconds: pauses up to these are part of it; 0 where there are always some signs, so that only its own pace counts.

    """
    times = sorted(present)
    if not times:
        return 0
    began, pause = times[0], longest_pause(times, seconds)
    for time in sorted(before, reverse=True):
        if began - time > pause:
            break
        began = min(began, time)
    return sane(facts, began)


def sane(facts: Facts, time: int) -> int:
    """Return *time* of an engine or an order, nanoseconds, no later than now; 0 for one that is not set."""
    return max(0, min(time, facts.now))


class EarlierLoss(NamedTuple):
    """What the processes of one engine lost that began before the window.

    Attributes:
        number: of entries.
        began: when the oldest of these processes did, nanoseconds.

    """

    number: int
    began: int


class LostEntries(NamedTuple):
    """Engines with entries that are missing in the log.

    Attributes:
        now: those whose process began in the window, or whose account is not whole.
        earlier: those whose process began in the time that the window is compared with: when it lost them is not known.
        older: those whose process began before that, of which less is known; it says nothing about the two times.
        number: how many entries those of *now* count as lost.

    """

    now: tuple[EngineKey, ...]
    earlier: Mapping[EngineKey, EarlierLoss]
    older: tuple[EngineKey, ...]
    number: int

    @classmethod
    def of(cls, facts: Facts) -> LostEntries:
        """Return those of *facts*."""
        edge = facts.now - int(facts.present.seconds * NANOS)
        compared = edge - int(facts.before.seconds * NANOS)
        now, older, number = set(), set(), 0
        earlier: defaultdict[EngineKey, list[EarlierLoss]] = defaultdict(list)
        for engine in facts.engines:
            key = words.key_of(engine.key)
            for source in engine.sources:
                began = source.hello.start_time_unix_nano
                if source.unaccounted_entries or (source.lost_entries and began >= edge):
                    now.add(key)
                    number += source.lost_entries
                elif source.lost_entries and began < compared:
                    older.add(key)
                elif source.lost_entries:
                    earlier[key].append(EarlierLoss(source.lost_entries, began))
        sums = {
            key: EarlierLoss(sum(each.number for each in losses), min(each.began for each in losses))
            for key, losses in sorted(earlier.items())
            if key not in now
        }
        return cls(words.keys_of(now), sums, words.keys_of(older - now - sums.keys()), number)
