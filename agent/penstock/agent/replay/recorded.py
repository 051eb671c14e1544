"""The remote loads of one engine as its events tell: when each began and ended, and what was decided about it."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.agent.replay.counts import Note
from penstock.proto import constants as c
from penstock.proto.deferral_channels import LOAD_CHANNELS
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.rules import (
    EXPORTED,
    HELD,
    MEDIA_ELSEWHERE,
    PINNED,
    WITHOUT_MEDIA,
    Outcome,
    Trigger,
    tells_compute_time,
    trigger_of,
)

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import DeferralEnd, Event, LoadOutcome, RequestClosed

KINDS: Final = ("load_outcome", "deferral_end", "request_closed", "quarantine_changed")
"""The kinds of events that a replay reads."""

_OF_REQUESTS: Final = frozenset({"load_outcome", "deferral_end", "request_closed"})
# Of one request and channel: more at a time are of a client that reuses its ids.
_MAX_OPEN: Final = 64
_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}


@dataclass(frozen=True, slots=True)
class Failed:
    """The recorded failure of a load, and what was decided about it.

    Attributes:
        mode: ``FailureMode`` of the wire; 0 where nothing was attempted.
        by_vllm: no policy decided.
        obstacle: it could not be rewound, whatever a policy says.

    """

    outcome: Outcome
    trigger: Trigger
    mode: int
    error_type: int
    rehearsal: bool
    by_vllm: bool
    obstacle: bool
    exported: bool
    local_media: bool
    items: int

    @property
    def is_left_out(self) -> bool:
        """Whether a reflex had it computed instead of loaded."""
        return self.trigger is Trigger.SLOW_PEER


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """One remote load; times in nanoseconds since the epoch.

    Attributes:
        peer: ``host:port``; empty where it is unknown or no engine.
        transfer_ns: when the transfer began that it waited for; 0 for never or not known.
        tokens: that it brought or lost; None if not known.
        failed: None for a load that succeeded.

    """

    channel: int
    peer: str
    engine_id: str
    started_ns: int
    transfer_ns: int
    ended_ns: int
    tokens: int | None
    failed: Failed | None = None


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change of a peer's quarantine; *by_order* of an operator."""

    at_ns: int
    peer: str
    is_open: bool
    by_order: bool


@dataclass(frozen=True, slots=True)
class RecordedPrefill:
    """What a request showed at its first token: how long it had queued, and how long computing its prompt took.

    Attributes:
        tokens: that were computed; 0 where that tells nothing about computing.

    """

    at_ns: int
    tokens: int
    took_ns: int
    queued_ns: int


@dataclass(frozen=True, slots=True)
class RecordedLoads:
    """All that a replay of one engine needs, in the order of time.

    Attributes:
        unusable: loads that are left out, by why.

    """

    loads: tuple[RecordedLoad, ...]
    changes: tuple[RecordedChange, ...]
    unusable: Counter[Note]
    prefills: tuple[RecordedPrefill, ...] = ()


@dataclass(frozen=True, slots=True)
class _RecordedWait:
    channel: int
    peer: str
    engine_id: str
    started_ns: int
    transfer_ns: int
    ended_ns: int
    ready: bool


@dataclass(frozen=True, slots=True)
class _Closed:
    peer: str
    engine_id: str
    tokens: int
    scheduled_ns: int


class Recording:
    """Collects the events of one engine, in any order, and keeps of each only what a replay needs."""

    def __init__(self) -> None:
        self._waits: defaultdict[tuple[str, int], list[_RecordedWait]] = defaultdict(list)
        self._outcomes: defaultdict[tuple[str, int], list[tuple[int, RecordedLoad | None]]] = defaultdict(
            list
        )
        self._closed: dict[str, _Closed] = {}
        self._changes: list[RecordedChange] = []
        self._prefills: list[RecordedPrefill] = []
        self._unusable: Counter[Note] = Counter()

    def add(self, event: Event) -> None:
        """Add an event of :data:`KINDS`; others are ignored."""
        kind = event.WhichOneof("body")
        if not event.request_id and kind in _OF_REQUESTS:
            # A failed load has an outcome, and perhaps a wait.
            if kind == "load_outcome" or event.deferral_end.ending == c.DEFERRAL_ENDING_READY:
                self._unusable[Note.NO_REQUEST] += 1
            return
        match kind:
            case "load_outcome":
                self._add_outcome(event, event.load_outcome)
            case "deferral_end":
                self._add_wait(event, event.deferral_end)
            case "request_closed":
                self._add_closed(event, event.request_closed)
            case "quarantine_changed":
                body = event.quarantine_changed
                self._changes.append(
                    RecordedChange(
                        event.time_unix_nano,
                        body.peer.address,
                        body.state == QUARANTINE_STATE_OPEN,
                        body.reason == "operator",
                    )
                )

    def loads(self) -> RecordedLoads:
        """Return the loads of the events so far."""
        found: list[RecordedLoad] = []
        unusable = Counter(self._unusable)
        known = {*self._waits, *self._outcomes}
        for key in known:
            waits = sorted(self._waits.get(key, ()), key=lambda wait: wait.started_ns)
            outcomes = sorted(self._outcomes.get(key, ()), key=lambda item: item[0])
            closed = self._closed.get(key[0])
            found += _join(waits, outcomes, closed, unusable)
        # A connector that loads within a step makes no request wait.
        found += [
            RecordedLoad(
                c.CHANNEL_KV, each.peer, each.engine_id, each.scheduled_ns, each.scheduled_ns,
                each.scheduled_ns, each.tokens,
            )
            for name, each in self._closed.items()
            if each.peer and each.tokens and (name, c.CHANNEL_KV) not in known
        ]  # fmt: skip
        found.sort(key=lambda load: (load.started_ns, load.ended_ns))
        changes = sorted(self._changes, key=lambda change: change.at_ns)
        prefills = sorted(self._prefills, key=lambda prefill: prefill.at_ns)
        return RecordedLoads(tuple(found), tuple(changes), unusable, tuple(prefills))

    def _add_outcome(self, event: Event, body: LoadOutcome) -> None:
        outcome = _OUTCOMES.get(body.outcome)
        if outcome is None:
            self._unusable[Note.ABORTED if body.outcome == c.OUTCOME_ABORTED else Note.NOT_DECIDED] += 1
            # Its wait is left out, too.
            self._outcomes[event.request_id, body.channel].append((event.time_unix_nano, None))
            return
        at, reason = event.time_unix_nano, body.reason
        trigger = trigger_of(reason)
        failed = Failed(
            outcome,
            trigger,
            body.mode,
            body.error_type,
            event.rehearsal,
            by_vllm=body.decided_by == c.DECIDED_BY_VLLM,
            obstacle=reason.endswith((HELD, WITHOUT_MEDIA))
            or (trigger is Trigger.DEADLINE and reason.endswith(PINNED)),
            exported=reason.endswith(EXPORTED),
            local_media=MEDIA_ELSEWHERE not in reason,
            items=body.items_recomputed,
        )
        load = RecordedLoad(
            body.channel, body.peer.address, body.peer.engine_id, at, 0, at, body.tokens_recomputed, failed
        )
        self._outcomes[event.request_id, body.channel].append((at, load))

    def _add_wait(self, event: Event, body: DeferralEnd) -> None:
        channel = LOAD_CHANNELS.get(body.reason)
        if channel is None or not body.start_time_unix_nano:
            return
        self._waits[event.request_id, channel].append(
            _RecordedWait(
                channel,
                body.peer.address,
                body.peer.engine_id,
                body.start_time_unix_nano,
                body.transfer_start_time_unix_nano,
                max(event.time_unix_nano, body.start_time_unix_nano),
                body.ending == c.DEFERRAL_ENDING_READY,
            )
        )

    def _add_closed(self, event: Event, body: RequestClosed) -> None:
        if body.external_cached_tokens:
            self._closed[event.request_id] = _Closed(
                body.peer.address,
                body.peer.engine_id,
                body.external_cached_tokens,
                body.scheduled_time_unix_nano or event.time_unix_nano,
            )
        if body.first_token_time_unix_nano and body.HasField("gates"):
            gates = body.gates
            computed = body.prompt_tokens - body.local_cached_tokens - body.external_cached_tokens
            told = not body.preemptions and tells_compute_time(computed, body.prompt_tokens)
            self._prefills.append(
                RecordedPrefill(
                    body.first_token_time_unix_nano,
                    computed if told else 0,
                    gates.own_prefill_nano + gates.recompute_nano,
                    gates.queue_nano,
                )
            )


def _join(
    waits: list[_RecordedWait],
    outcomes: list[tuple[int, RecordedLoad | None]],
    closed: _Closed | None,
    unusable: Counter[Note],
) -> list[RecordedLoad]:
    """Return the loads of one request: each failure with the wait that it ended, and the waits that ended well."""
    found: list[RecordedLoad] = []
    later = deque(waits)
    # In the order of their starts; a failure ended one of the newest.
    begun: list[_RecordedWait] = []
    for at, load in outcomes:
        while later and later[0].started_ns <= at:
            begun.append(later.popleft())
        newest = range(len(begun) - 1, max(-1, len(begun) - 1 - _MAX_OPEN), -1)
        place = next((each for each in newest if _ends(begun[each], load, at)), None)
        wait = None if place is None else begun.pop(place)
        if load is not None:
            found.append(load if wait is None else _with_wait(load, wait))
    for wait in (*begun, *later):
        if not wait.ready:
            unusable[Note.NO_OUTCOME] += 1
            continue
        tokens = closed.tokens if closed is not None and wait.channel == c.CHANNEL_KV else None
        found.append(
            RecordedLoad(
                wait.channel, wait.peer, wait.engine_id, wait.started_ns, wait.transfer_ns,
                wait.ended_ns, tokens,
            )
        )  # fmt: skip
    return found


def _ends(wait: _RecordedWait, load: RecordedLoad | None, at: int) -> bool:
    """Return whether a failure at *at* ended that wait; *load* is None for one that is left out."""
    failed = None if load is None else load.failed
    if failed is None:
        return wait.started_ns <= at
    if failed.trigger in (Trigger.QUARANTINE, Trigger.SLOW_PEER):
        return False
    # One whose blocks another load has spoiled need not have waited itself.
    return wait.started_ns <= at and (failed.mode != c.FAILURE_MODE_COLLATERAL or wait.ended_ns >= at)


def _with_wait(load: RecordedLoad, wait: _RecordedWait) -> RecordedLoad:
    return replace(load, started_ns=wait.started_ns, transfer_ns=wait.transfer_ns)
