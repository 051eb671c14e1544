"""A replay says what an engine under that policy would have done, and of the policy in force what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.replay import Counts, Note, OwnOutcomes, PeerTimes, Recording, Replayed, replay
from penstock.proto import constants as c
from penstock.rules import (
    HELD,
    NO_POLICY,
    Action,
    Deferral,
    EcLoadFailure,
    KvLoadFailure,
    Outcome,
    PeerQuarantine,
    Policy,
)

from tests.support.agent.batches import PEER, TIME, deferral_end, event
from tests.support.replay.simulated_engine import Fate, SimulatedEngine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.proto.v1.events_pb2 import Event

_SECOND = 10**9
_END = TIME + 1_000 * _SECOND
_PEERS = ("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")
_RECOMPUTE = Policy(KvLoadFailure(Action.RECOMPUTE), hash="h")
_FAIL = Policy(KvLoadFailure(Action.FAIL), hash="h")


def _replayed(
    events: Iterable[Event], policy: Policy = NO_POLICY, own: OwnOutcomes | None = None
) -> Replayed:
    recording = Recording()
    for each in events:
        recording.add(each)
    return replay(recording.loads(), policy, own or OwnOutcomes(), _END)


_modes = st.sampled_from(
    [
        (0, 0),
        (0, 0),
        (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_REFUSED),
        (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET),
        (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE),
        (c.FAILURE_MODE_EXPIRED, c.ERROR_TYPE_OTHER),
    ]
)


@st.composite
def _fates(draw: st.DrawFn) -> list[Fate]:
    # Times of their own for each load, so that no two things happen at once.
    found = []
    at = TIME
    for number in range(draw(st.integers(0, 40))):
        at += draw(st.integers(1, 20)) * _SECOND // 10 + number
        lasts = draw(st.integers(1, 100)) * _SECOND // 10 + 1 + number
        begins = draw(st.none() | st.integers(0, 100))
        mode, error_type = draw(_modes)
        transfer = None if begins is None and mode else lasts * (begins or 0) // 101
        peer, tokens = draw(st.sampled_from(_PEERS)), draw(st.integers(1, 5000))
        found.append(Fate(at, peer, tokens, lasts, transfer, mode, error_type))
    return found


_actions = st.sampled_from(Action)
_plain = st.sampled_from([Action.RECOMPUTE, Action.FAIL])
_limits = st.none() | st.floats(0.1, 8)
_policies = st.builds(
    Policy,
    kv_load_failure=st.builds(
        KvLoadFailure,
        st.none() | _actions,
        st.none() | st.integers(0, 5000),
        st.none() | st.integers(0, 5000),
        st.none() | _plain,
    ),
    deferral=st.none() | st.builds(Deferral, _limits, _limits, st.none() | _plain),
    peer_quarantine=st.none()
    | st.builds(
        PeerQuarantine, st.integers(1, 4), st.floats(1, 30), st.floats(0.5, 20), st.integers(30, 100)
    ),
    hash=st.just("h"),
)


@given(_fates(), _policies, st.sampled_from(Outcome))
@settings(deadline=None)
def test_the_policy_in_force_gives_what_was_recorded(fates: list[Fate], policy: Policy, own: Outcome) -> None:
    """Counts, waits and quarantines, but for what only an attempt could have told."""
    found = _replayed(SimulatedEngine(fates, policy, own).run(), policy, OwnOutcomes(kv=own))
    assert found.would == found.was
    assert found.peers_would == found.peers_was
    assert not found.notes[Note.ENDLESS] + found.notes[Note.LONGER] + found.notes[Note.TRIED]


@given(_fates(), _policies, st.sampled_from(Outcome))
@settings(deadline=None)
def test_another_policy_gives_what_a_run_under_it_records(
    fates: list[Fate], policy: Policy, own: Outcome
) -> None:
    """An incident without a policy, replayed under one, is as the same incident under it."""
    found = _replayed(SimulatedEngine(fates, NO_POLICY, own).run(), policy, OwnOutcomes(kv=own))
    live = _replayed(SimulatedEngine(fates, policy, own).run(), policy, OwnOutcomes(kv=own))
    assert found.would == live.was
    assert found.peers_would == live.peers_was


def _failure(name: str, at: int = TIME, **body: Any) -> Event:
    fields: dict[str, Any] = {
        "channel": c.CHANNEL_KV,
        "outcome": c.OUTCOME_FAILED,
        "decided_by": c.DECIDED_BY_VLLM,
        "mode": c.FAILURE_MODE_HANDSHAKE,
        "error_type": c.ERROR_TYPE_REFUSED,
        "peer": {"address": PEER},
        "tokens_recomputed": 100,
        "reason": "vLLM's own kv_load_failure_policy: fail",
    }
    return event("load_outcome", name, time_ns=at, **{**fields, **body})


def test_nothing_recorded_is_nothing_replayed() -> None:
    """No load, no count."""
    assert _replayed([], _RECOMPUTE) == Replayed()


def test_failures_become_recomputed_tokens() -> None:
    """The cost is what they lost; the wait stays."""
    end = deferral_end("r", start_ns=TIME, time_ns=TIME + 2 * _SECOND)
    found = _replayed([_failure("r", TIME + 2 * _SECOND), end], _RECOMPUTE)
    assert found.was == Counts(loads=1, failed=1, waited_ns=2 * _SECOND)
    assert found.would == Counts(loads=1, recomputed=1, tokens_recomputed=100, waited_ns=2 * _SECOND)


def test_a_deadline_cuts_what_would_have_succeeded() -> None:
    """At 5 s is cut what was there after 6 s: it is recomputed, and the second is saved."""
    events = [
        deferral_end("r", start_ns=TIME, time_ns=TIME + 6 * _SECOND),
        event("request_closed", "r", time_ns=TIME + 9 * _SECOND, external_cached_tokens=640),
    ]
    policy = Policy(deferral=Deferral(max_start_wait=5.0, on_timeout=Action.RECOMPUTE), hash="h")
    found = _replayed(events, policy)
    assert found.was == Counts(loads=1, loaded=1, waited_ns=6 * _SECOND)
    assert found.would == Counts(
        loads=1, recomputed=1, tokens_recomputed=640, waits_cut=1, waited_ns=5 * _SECOND
    )
    assert found.notes == {Note.SUCCEEDED: 1}


def test_a_look_up_is_no_load_of_its_own() -> None:
    """The load that follows has a wait of its own: its tokens count once, and no deadline ends a look-up."""
    policy = Policy(deferral=Deferral(max_start_wait=5.0, on_timeout=Action.RECOMPUTE), hash="h")
    events = [
        deferral_end("r", time_ns=TIME + 8 * _SECOND, reason=c.DEFERRAL_REASON_KV_LOOKUP),
        deferral_end("r", start_ns=TIME + 8 * _SECOND, time_ns=TIME + 9 * _SECOND),
        event("request_closed", "r", time_ns=TIME + 10 * _SECOND, external_cached_tokens=640),
    ]

    found = _replayed(events, policy)
    assert found.was == found.would == Counts(loads=1, loaded=1, waited_ns=_SECOND)


def test_what_a_deadline_cut_is_not_known_without_it() -> None:
    """How it would have ended, nobody knows; with a longer deadline it is assumed to reach that."""
    cut = _failure(
        "r",
        TIME + 5 * _SECOND,
        decided_by=c.DECIDED_BY_DEADLINE,
        mode=c.FAILURE_MODE_TIMEOUT,
        error_type=c.ERROR_TYPE_TIMEOUT,
        reason="the wait was over its deadline; deferral.onTimeout: fail",
    )
    events = [cut, deferral_end("r", start_ns=TIME, time_ns=TIME + 5 * _SECOND)]
    endless = _replayed(events, _FAIL)
    assert (endless.would.unknown, endless.notes) == (1, {Note.ENDLESS: 1})
    longer = Policy(deferral=Deferral(max_start_wait=8.0, on_timeout=Action.FAIL), hash="h")
    found = _replayed(events, longer)
    assert (found.would.failed, found.would.waited_ns) == (1, 8 * _SECOND)
    assert found.notes == {Note.LONGER: 1}


def test_a_quarantine_spares_the_later_ones() -> None:
    """Two peers; the sick one fails three times and is left alone from then on, for as long as the window lasts."""
    events = [
        each
        for number in range(6)
        for each in (
            deferral_end(
                f"s{number}",
                start_ns=TIME + number * _SECOND,
                time_ns=TIME + number * _SECOND + _SECOND // 2,
            ),
            _failure(f"s{number}", TIME + number * _SECOND + _SECOND // 2),
        )
    ]
    events.append(
        deferral_end("good", peer="10.0.0.9:1", start_ns=TIME - _SECOND, time_ns=TIME - _SECOND // 2)
    )
    policy = Policy(KvLoadFailure(Action.RECOMPUTE), peer_quarantine=PeerQuarantine(3, 30, 60, 50), hash="h")
    found = _replayed(events, policy)
    assert (found.was.failed, found.was.not_tried) == (6, 0)
    assert (found.would.recomputed, found.would.not_tried, found.would.loaded) == (6, 3, 1)
    assert found.peers_was == {}
    assert found.peers_would == {PEER: PeerTimes(1, 1_000 * _SECOND - 5 * _SECOND // 2)}
    assert found.was.waited_ns - found.would.waited_ns == 3 * _SECOND // 2


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({"reason": f"vLLM says so; {HELD}"}, "failed"),
        ({"reason": ""}, "recomputed"),
        ({"outcome": c.OUTCOME_ABORTED}, None),
        ({"outcome": c.OUTCOME_RETRIED}, None),
    ],
)
def test_what_a_policy_cannot_change(body: dict[str, Any], outcome: str | None) -> None:
    """A request that cannot be rewound fails; what was not decided about is left out and said."""
    found = _replayed([_failure("r", **body)], _RECOMPUTE)
    if outcome is None:
        assert (found.would.loads, sum(found.notes.values())) == (0, 1)
    else:
        assert getattr(found.would, outcome) == 1


def test_without_an_action_vllm_s_own_setting_holds_or_is_not_known() -> None:
    """It is told by the engine, or by what it decided itself."""
    by_policy = _failure("r", decided_by=c.DECIDED_BY_POLICY, reason="kvLoadFailure.action: fail")
    assert _replayed([by_policy]).would.unknown == 1
    assert _replayed([by_policy], own=OwnOutcomes(Outcome.RECOMPUTED)).would.recomputed == 1
    assert _replayed([by_policy, _failure("s")]).would.failed == 2


def test_events_without_a_request_are_left_out_and_counted() -> None:
    """Nothing says which wait a failure ended."""
    events = [_failure(""), deferral_end(""), event("request_closed", "", external_cached_tokens=1)]
    found = _replayed([*events, _failure("r")], _RECOMPUTE)
    assert found.would.loads == 1
    assert found.notes == {Note.NO_REQUEST: 2}


def test_a_reused_id_keeps_all_its_loads() -> None:
    """A failure is joined with the newest wait that had begun, however many there are."""
    waits = [deferral_end("r", start_ns=TIME + n, time_ns=TIME + n + 1) for n in range(3_000)]
    failures = [_failure("r", TIME + n + 1) for n in range(0, 3_000, 3)]
    found = _replayed([*waits, *failures], _RECOMPUTE)
    assert (found.would.loads, found.would.recomputed) == (3_000, 1_000)


def test_encoder_outputs_go_by_their_own_field() -> None:
    """``ecLoadFailure``, with the items."""
    lost = _failure("r", channel=c.CHANNEL_EC, tokens_recomputed=0, items_recomputed=3)
    policy = Policy(ec_load_failure=EcLoadFailure(Action.AUTO, 2), hash="h")
    assert _replayed([lost], policy).would.failed == 1
    policy = Policy(ec_load_failure=EcLoadFailure(Action.AUTO, 3), hash="h")
    found = _replayed([lost], policy)
    assert (found.would.recomputed, found.would.items_recomputed) == (1, 3)
