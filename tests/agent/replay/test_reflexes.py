"""Reflexes in a replay: they know what the engine would have measured, and each load is set against what was recorded of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.replay import Note, OwnOutcomes, Recording, ReflexCounts, Replayed, acting, replay
from penstock.proto import constants as c
from penstock.rules import (
    ALL_REFLEXES,
    EXPORTED,
    NO_POLICY,
    NO_REFLEXES,
    RECOMPUTE_STORM,
    SLOW_PEER,
    START_WAIT,
    Outcome,
    ReflexRules,
    SlowPeerRule,
    StartWaitRule,
    Trigger,
)

from tests.support.agent.batches import PEER, TIME, deferral_end, event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.proto.v1.events_pb2 import Event

_SECOND = 10**9
_MILLI = 10**6
_END = TIME + 1_000 * _SECOND
_TOKENS = 100
_START_WAIT = ReflexRules(start_wait=StartWaitRule(enforce=True))
_SLOW_PEER = ReflexRules(slow_peer=SlowPeerRule(enforce=True))


def _replayed(events: Iterable[Event], rules: ReflexRules, own: Outcome = Outcome.FAILED) -> Replayed:
    recording = Recording()
    for each in events:
        recording.add(each)
    return replay(recording.loads(), NO_POLICY, OwnOutcomes(kv=own), _END, rules)


def _prices(number: int = 5, at: int = TIME, **gates: int) -> list[Event]:
    """Return requests that computed 100 tokens in 100 ms, before the loads."""
    gates = {"own_prefill_nano": 100 * _MILLI, **gates}
    return [
        event(
            "request_closed",
            f"computed-{at}-{each}",
            time_ns=at,
            prompt_tokens=_TOKENS,
            first_token_time_unix_nano=at - _SECOND,
            gates=gates,
        )
        for each in range(number)
    ]


def _load(name: str, at: int, lasts: int, *, transfer: int = 0) -> list[Event]:
    """Return a load that succeeds."""
    return [
        deferral_end(name, start_ns=at, time_ns=at + lasts, transfer_start_time_unix_nano=transfer),
        event(
            "request_closed",
            name,
            time_ns=at + lasts + _SECOND,
            peer={"address": PEER},
            external_cached_tokens=_TOKENS,
            prompt_tokens=_TOKENS,
        ),
    ]


def _failure(name: str, at: int, lasts: int, outcome: int, **body: Any) -> list[Event]:
    fields: dict[str, Any] = {
        "channel": c.CHANNEL_KV,
        "outcome": outcome,
        "decided_by": c.DECIDED_BY_VLLM,
        "mode": c.FAILURE_MODE_TRANSFER,
        "error_type": c.ERROR_TYPE_REMOTE_RESET,
        "peer": {"address": PEER},
        "tokens_recomputed": _TOKENS,
        "reason": "vLLM's own kv_load_failure_policy",
    }
    return [
        event("load_outcome", name, time_ns=at + lasts, **{**fields, **body}),
        deferral_end(name, start_ns=at, time_ns=at + lasts),
    ]


def test_a_load_that_does_not_begin_is_given_up() -> None:
    """After 500 ms instead of 3 s, and computed in 100 ms."""
    found = _replayed([*_prices(), *_load("r", TIME, 3 * _SECOND)], _START_WAIT)
    assert found.reflexes == {
        START_WAIT: ReflexCounts(acts=True, asked=1, times=1, saved_ns=2_400 * _MILLI, tokens=_TOKENS)
    }
    assert (found.would.by_reflex, found.would.recomputed, found.would.waited_ns) == (1, 1, 500 * _MILLI)
    assert found.notes[Note.SUCCEEDED] == 1


def test_one_that_began_in_time_is_not() -> None:
    """However long its transfer takes."""
    events = [*_prices(), *_load("r", TIME, 3 * _SECOND, transfer=TIME + 499 * _MILLI)]
    found = _replayed(events, _START_WAIT)
    assert found.reflexes == {START_WAIT: ReflexCounts(acts=True, asked=1)}
    assert found.would == found.was


def test_one_that_would_have_been_there_a_moment_later_is_a_loss() -> None:
    """Waiting for 500 ms and computing for 100 ms is 90 ms more than it took."""
    found = _replayed([*_prices(), *_load("r", TIME, 510 * _MILLI)], _START_WAIT)
    assert found.reflexes[START_WAIT].lost_ns == 90 * _MILLI
    assert found.reflexes[START_WAIT].saved_ns == 0


def test_without_a_price_nothing_is_done_and_that_is_counted() -> None:
    """Four requests are too few, and one that waited for a preempted slot tells nothing."""
    for few in (_prices(4), [_preempted(each) for each in _prices(5)]):
        found = _replayed([*few, *_load("r", TIME, 3 * _SECOND)], ALL_REFLEXES)
        assert found.reflexes[START_WAIT] == ReflexCounts(acts=True, asked=1, price_unknown=1)
        assert found.reflexes[SLOW_PEER] == ReflexCounts(acts=True, asked=1, price_unknown=1)
        assert found.reflexes[RECOMPUTE_STORM] == ReflexCounts()
        assert found.would == found.was


def _preempted(each: Event) -> Event:
    each.request_closed.preemptions = 1
    return each


def test_a_price_of_later_is_not_known_before() -> None:
    """The first token of those that computed comes after the load."""
    later = _prices(at=TIME + 60 * _SECOND)
    found = _replayed([*_load("r", TIME, 3 * _SECOND), *later], _START_WAIT)
    assert found.reflexes[START_WAIT].price_unknown == 1


def _slow_loads(number: int, lasts: int = 3 * _SECOND) -> list[Event]:
    return [
        each
        for index in range(number)
        for each in _load(
            f"slow-{index}", TIME + index * 4 * _SECOND, lasts, transfer=TIME + index * 4 * _SECOND
        )
    ]


def test_a_slow_peer_is_left_out() -> None:
    """After five slow loads; each further one is computed in 100 ms instead of 3 s."""
    found = _replayed([*_prices(), *_slow_loads(8)], _SLOW_PEER)
    assert found.reflexes[SLOW_PEER] == ReflexCounts(
        acts=True, asked=8, times=3, saved_ns=3 * 2_900 * _MILLI, tokens=3 * _TOKENS, peer_unknown=5
    )
    assert (found.would.by_reflex, found.would.loaded) == (3, 5)


def test_perminute_bounds_them_together() -> None:
    """Of three that would be left out two are loaded, and counted."""
    rules = ReflexRules(per_minute=1, slow_peer=SlowPeerRule(enforce=True))
    found = _replayed([*_prices(), *_slow_loads(8)], rules)
    assert (found.reflexes[SLOW_PEER].times, found.reflexes[SLOW_PEER].limited) == (1, 2)
    assert found.would.loaded == 7


def test_one_that_observes_changes_nothing() -> None:
    """It is counted all the same."""
    rules = ReflexRules(start_wait=StartWaitRule(), slow_peer=SlowPeerRule())
    found = _replayed([*_prices(), *_slow_loads(8), *_load("r", TIME + 90 * _SECOND, 3 * _SECOND)], rules)
    assert found.would == found.was
    assert not any(each.acts for each in found.reflexes.values())
    assert (found.reflexes[SLOW_PEER].times, found.reflexes[START_WAIT].times) == (3, 1)


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (c.OUTCOME_RECOMPUTED, ReflexCounts(acts=True, asked=1, times=1, saved_ns=2_500 * _MILLI)),
        (c.OUTCOME_FAILED, ReflexCounts(acts=True, asked=1, times=1, rescued=1)),
    ],
)
def test_a_load_that_failed_is_computed_sooner(outcome: int, counts: ReflexCounts) -> None:
    """It is compared with its wait and the computing after it; a request that failed has no time to compare."""
    found = _replayed([*_prices(), *_failure("r", TIME, 3 * _SECOND, outcome)], _START_WAIT)
    assert found.reflexes[START_WAIT] == counts
    assert (found.would.failed, found.would.recomputed) == (0, 1)


def test_what_cannot_be_rewound_fails_and_that_is_counted() -> None:
    """Another connector has passed its blocks on: only vLLM's own setting had it recomputed."""
    events = _failure(
        "r", TIME, 3 * _SECOND, c.OUTCOME_RECOMPUTED, reason=f"kvLoadFailure.action: recompute; {EXPORTED}"
    )
    found = _replayed([*_prices(), *events], _START_WAIT)
    assert found.reflexes[START_WAIT].failed == 1
    assert found.would.failed == 1


def _storm(number: int) -> list[Event]:
    queued = [
        each
        for index in range(number)
        for each in _prices(1, TIME + index * _SECOND + 5 * _MILLI, queue_nano=3 * _SECOND)
    ]
    failed = [
        each
        for index in range(number)
        for each in _failure(f"lost-{index}", TIME + index * _SECOND, 1, c.OUTCOME_RECOMPUTED)
    ]
    return [*queued, *failed]


def test_a_storm_is_only_reported() -> None:
    """It says which requests would have failed; none does."""
    found = _replayed(_storm(20), acting(NO_REFLEXES), Outcome.RECOMPUTED)
    counts = found.reflexes[RECOMPUTE_STORM]
    assert not counts.acts
    assert counts.asked == 20
    assert 0 < counts.times == counts.failed < 20
    assert counts.tokens == counts.times * _TOKENS
    assert found.would == found.was


@pytest.mark.parametrize("trigger", [Trigger.START_WAIT, Trigger.SLOW_PEER])
def test_what_a_reflex_did_is_understood(trigger: Trigger) -> None:
    """With the same reflex it is so again; without, how the load would have ended is not known."""
    start = trigger is Trigger.START_WAIT
    field = START_WAIT if start else SLOW_PEER
    did = _failure(
        "r",
        TIME + 40 * _SECOND,
        _SECOND,
        c.OUTCOME_RECOMPUTED,
        mode=c.FAILURE_MODE_TIMEOUT if start else 0,
        decided_by=c.DECIDED_BY_REFLEX,
        reason=f"{trigger.value}{field}: computing 100 tokens takes 0.1 s here",
    )
    events = [*_prices(), *_slow_loads(5), *(did if start else did[:1])]
    again = _replayed(events, _START_WAIT if start else _SLOW_PEER)
    assert again.was.by_reflex == again.would.by_reflex == 1
    assert again.notes[Note.REFLEX] == 1
    without = _replayed(events, NO_REFLEXES)
    assert (without.was.by_reflex, without.would.by_reflex, without.would.unknown) == (1, 0, 1)
    assert without.notes[Note.GIVEN_UP] == 1


def test_acting_keeps_what_a_policy_sets() -> None:
    """The others have their defaults."""
    rules = acting(ReflexRules(per_minute=7, slow_peer=SlowPeerRule(factor=9.0)))
    assert rules.per_minute == 7
    assert rules.slow_peer == SlowPeerRule(enforce=True, factor=9.0)
    assert rules.start_wait == StartWaitRule(enforce=True)
    assert acting(NO_REFLEXES) == ALL_REFLEXES
