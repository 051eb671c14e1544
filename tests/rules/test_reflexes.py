"""The reflexes of one engine: they know only what was measured lately, and each ends by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.rules import (
    ALL_REFLEXES,
    NO_POLICY,
    NO_REFLEXES,
    RECOMPUTE_STORM,
    SLOW_PEER,
    START_WAIT,
    Action,
    Budgets,
    DecidedBy,
    EngineReflexes,
    KvLoadFailure,
    KvLoss,
    Outcome,
    Policy,
    PolicyBody,
    RecomputeBudget,
    RecomputeStormReflex,
    ReflexAction,
    Reflexes,
    ReflexRules,
    SlowPeerReflex,
    SlowPeerRule,
    StartWaitReflex,
    StartWaitRule,
    Trigger,
    decide_kv,
    reflex_rules,
    trigger_of,
)
from penstock.rules.measured_times import COMPUTED_NS, LOADED_NS, MIN_SAMPLES, ComputeTimes, LoadTimes
from penstock.rules.recompute_storm import RecomputeStorm

_SECOND = 10**9
_MILLI = 10**6
_NOW = 1_000 * _SECOND
_PEER = "10.0.0.1:1"

_tokens = st.integers(1, 10_000)
_times = st.integers(1, 100 * _SECOND)
_samples = st.lists(st.tuples(_tokens, _times), max_size=80)


def _engine(
    rules: ReflexRules = ALL_REFLEXES, *, computed: int = MIN_SAMPLES, loaded: int = 0
) -> EngineReflexes:
    """Return an engine that computes 100 tokens in 100 ms, and loads as many in a second."""
    engine = EngineReflexes()
    engine.rules = rules
    for _ in range(computed):
        engine.on_computed(100, 100 * _MILLI, _NOW)
    for _ in range(loaded):
        engine.on_loaded(_PEER, 100, _SECOND, _NOW)
    return engine


@given(st.lists(st.tuples(_tokens, _times), max_size=MIN_SAMPLES - 1), _tokens)
def test_too_few_samples_are_nothing(samples: list[tuple[int, int]], tokens: int) -> None:
    """One less than five of computing, or of the peer, and no reflex acts."""
    engine = _engine(computed=0, loaded=20)
    for each, took in samples:
        engine.on_computed(each, took, _NOW)
    assert engine.wait_limit(tokens, _NOW) is None
    assert engine.slow_peer(_PEER, tokens, _NOW) == ""
    engine = _engine(loaded=len(samples))
    assert engine.wait_limit(100, _NOW) is not None
    assert engine.slow_peer(_PEER, 100, _NOW) == ""


def test_what_is_older_counts_no_more() -> None:
    """Of computing for ten minutes, of a peer for one."""
    engine = _engine(loaded=MIN_SAMPLES)
    assert engine.wait_limit(100, _NOW + COMPUTED_NS) is not None
    assert engine.wait_limit(100, _NOW + COMPUTED_NS + 1) is None
    assert engine.slow_peer(_PEER, 100, _NOW + LOADED_NS) != ""
    assert engine.slow_peer(_PEER, 100, _NOW + LOADED_NS + 1) == ""


def test_the_limit_is_a_multiple_of_computing_and_never_less_than_the_least() -> None:
    """100 tokens take 100 ms: twice that is less than half a second."""
    limit = _engine().wait_limit(100, _NOW)
    assert limit is not None
    assert (limit.limit_ns, limit.compute_ns) == (500 * _MILLI, 100 * _MILLI)
    patient = ReflexRules(start_wait=StartWaitRule(factor=20.0))
    limit = _engine(patient).wait_limit(100, _NOW)
    assert limit is not None
    assert limit.limit_ns == 2 * _SECOND
    assert limit.reason(3 * _SECOND) == (
        f"{START_WAIT}: 3 s waited for the load to begin, computing 100 tokens takes 0.1 s here"
    )


def test_a_few_tokens_say_nothing_of_many() -> None:
    """A step takes its time for few tokens as for many."""
    engine = _engine()
    assert engine.wait_limit(400, _NOW) is not None
    assert engine.wait_limit(401, _NOW) is None


def test_a_slow_peer_stays_slow_until_loading_is_no_dearer() -> None:
    """Between once and twice as dear it stays what it was."""
    fast, between = 100 * _MILLI, 150 * _MILLI
    engine = _engine()

    def loads(took: int, at: int) -> str:
        for _ in range(32):
            engine.on_loaded(_PEER, 100, took, at)
        return engine.slow_peer(_PEER, 100, at)

    assert loads(between, _NOW) == ""
    assert (
        loads(_SECOND, _NOW)
        == f"{SLOW_PEER}: its loads take 1 s or more, computing 100 tokens takes 0.1 s here"
    )
    assert loads(between, _NOW) != ""
    assert loads(fast, _NOW) == ""
    assert loads(between, _NOW) == ""


def test_one_fast_load_ends_it() -> None:
    """The newest load tells best how the peer is."""
    engine = _engine(loaded=20)
    assert engine.slow_peer(_PEER, 100, _NOW) != ""
    engine.on_loaded(_PEER, 100, 50 * _MILLI, _NOW)
    assert engine.slow_peer(_PEER, 100, _NOW) == ""
    assert engine.slow_peer("10.0.0.2:1", 100, _NOW) == ""


@given(st.integers(1, 50), st.lists(st.integers(0, 10 * _SECOND), max_size=200))
def test_they_never_act_more_often_than_they_may(per_minute: int, gaps: list[int]) -> None:
    """In any minute."""
    engine = EngineReflexes()
    engine.rules = ReflexRules(per_minute=per_minute)
    now, acted = _NOW, []
    for gap in gaps:
        now += gap
        if engine.may_act(now):
            acted.append(now)
    for start in acted:
        assert sum(start <= each <= start + 60 * _SECOND for each in acted) <= per_minute


@given(_samples, st.lists(_tokens, min_size=2, max_size=2))
def test_more_tokens_never_take_less(samples: list[tuple[int, int]], sizes: list[int]) -> None:
    """Of computing where the same samples compare, and of loading."""
    few, many = sorted(sizes)
    computed, loads = ComputeTimes(), LoadTimes()
    for tokens, took in samples:
        loads.add(_PEER, tokens, took, _NOW)
        if 4 * tokens >= many:
            computed.add(tokens, took, _NOW)
    for first, second in (
        (computed.estimate(few, _NOW), computed.estimate(many, _NOW)),
        (loads.estimate(_PEER, few, _NOW), loads.estimate(_PEER, many, _NOW)),
    ):
        assert (first is None) == (second is None)
        assert first is None or second is None or first <= second


@given(_samples, _tokens)
def test_each_is_estimated_from_its_dear_side(samples: list[tuple[int, int]], tokens: int) -> None:
    """Computing is never cheaper than the cheapest sample of more tokens, loading never dearer than the dearest."""
    computed, loads = ComputeTimes(), LoadTimes()
    for each, took in samples:
        computed.add(each, took, _NOW)
        loads.add(_PEER, each, took, _NOW)
    price, load = computed.estimate(tokens, _NOW), loads.estimate(_PEER, tokens, _NOW)
    assert price is None or price >= min(took for _, took in samples)
    assert load is None or load <= max(took for _, took in samples)


def test_memory_is_bounded() -> None:
    """However many peers and samples there are."""
    engine = EngineReflexes()
    engine.rules = ReflexRules(per_minute=10, slow_peer=SlowPeerRule())
    for _ in range(5_000):
        engine.on_computed(100, 100 * _MILLI, _NOW)
        engine.on_queued(_SECOND, _NOW)
        engine.on_recomputed(100, _NOW)
        engine.may_act(_NOW)
    for number in range(1_500):
        for _ in range(MIN_SAMPLES):
            engine.on_loaded(f"10.0.0.1:{number}", 100, _SECOND, _NOW)
        assert engine.slow_peer(f"10.0.0.1:{number}", 100, _NOW) != ""
    assert len(engine._computed._samples) == 64
    assert len(engine._loads._peers) == 1024
    assert len(engine._slow) == 1024
    assert len(engine._acts) == 10
    assert len(engine._storm._queued) == len(engine._storm._recomputed) == 256


@given(st.integers(-5, 0), st.integers(-5, 0))
def test_nonsense_is_no_sample(tokens: int, took: int) -> None:
    """Clocks step back, and a request may have computed nothing."""
    computed, loads = ComputeTimes(), LoadTimes()
    for _ in range(MIN_SAMPLES):
        computed.add(tokens, took, _NOW)
        loads.add(_PEER, tokens, took, _NOW)
    assert computed.estimate(1, _NOW) is None
    assert loads.estimate(_PEER, 1, _NOW) is None


class TestStorm:
    """A limit that goes down by steps while requests queue, and comes back."""

    def test_it_goes_down_one_step_in_five_seconds_and_to_an_eighth(self) -> None:
        """While half of the requests queue for longer than they may, and others are recomputed."""
        storm = RecomputeStorm()
        limits = []
        for number in range(12):
            now = _NOW + number * 2_500 * _MILLI
            storm.on_queued(3 * _SECOND, now)
            storm.on_recomputed(800, now)
            limits.append(storm.limit(2 * _SECOND, now))
        assert limits == [400, 400, 200, 200, *[100] * 8]

    def test_it_comes_back_by_the_same_steps_below_half_of_the_wait(self) -> None:
        """Between half and the whole it stays."""
        storm = RecomputeStorm()
        storm.on_queued(3 * _SECOND, _NOW)
        storm.on_recomputed(800, _NOW)
        assert storm.limit(2 * _SECOND, _NOW) == 400
        assert storm.limit(2 * _SECOND, _NOW + 5 * _SECOND) == 200
        storm.on_queued(3 * _SECOND // 2, _NOW + 14 * _SECOND)
        assert storm.limit(2 * _SECOND, _NOW + 15 * _SECOND) == 200
        assert storm.limit(2 * _SECOND, _NOW + 30 * _SECOND) == 400
        assert storm.limit(2 * _SECOND, _NOW + 35 * _SECOND) is None

    def test_without_recomputation_a_queue_is_no_storm(self) -> None:
        """It has another reason."""
        storm = RecomputeStorm()
        storm.on_queued(60 * _SECOND, _NOW)
        assert storm.limit(2 * _SECOND, _NOW) is None

    def test_it_expires(self) -> None:
        """A limit that was not lowered again for five minutes is none."""
        storm = RecomputeStorm()
        storm.on_queued(3 * _SECOND, _NOW)
        storm.on_recomputed(800, _NOW)
        assert storm.limit(2 * _SECOND, _NOW) == 400
        later = _NOW + 301 * _SECOND
        storm.on_queued(3 * _SECOND // 2, later)
        assert storm.limit(2 * _SECOND, later) is None

    def test_the_reflex_says_which_loss_is_too_large(self) -> None:
        """And of a smaller one nothing."""
        engine = _engine()
        engine.on_queued(3 * _SECOND, _NOW)
        engine.on_recomputed(800, _NOW)
        assert engine.storm(400, _NOW) == ""
        assert engine.storm(401, _NOW) == (
            f"{RECOMPUTE_STORM}: requests queue for more than 2 s while others are recomputed; "
            "401 tokens lost, at most 400 would be recomputed"
        )


_ENFORCED = Reflexes(
    30,
    StartWaitReflex(ReflexAction.ENFORCE, 3.0, 0.25),
    SlowPeerReflex(ReflexAction.ENFORCE),
    RecomputeStormReflex(queue_wait=1.0),
)


def test_no_policy_is_no_reflex() -> None:
    """Nothing is measured for nothing, and nothing acts."""
    assert not reflex_rules(NO_POLICY)
    assert not NO_REFLEXES
    engine = _engine(NO_REFLEXES, loaded=20)
    engine.on_queued(60 * _SECOND, _NOW)
    engine.on_recomputed(800, _NOW)
    assert engine.wait_limit(100, _NOW) is None
    assert engine.slow_peer(_PEER, 100, _NOW) == engine.storm(10**6, _NOW) == ""


def test_only_what_is_enforced_acts() -> None:
    """A reflex without an action, or of a policy in mode observe, reports; the storm always does."""
    rules = reflex_rules(Policy(reflexes=_ENFORCED))
    assert rules.per_minute == 30
    assert rules.start_wait == StartWaitRule(enforce=True, factor=3.0, min_wait_ns=250 * _MILLI)
    assert rules.slow_peer == SlowPeerRule(enforce=True)
    assert rules.recompute_storm is not None
    assert rules.recompute_storm.queue_wait_ns == _SECOND
    observed = reflex_rules(Policy(observed=PolicyBody(reflexes=_ENFORCED)))
    assert observed.start_wait == StartWaitRule(enforce=False, factor=3.0, min_wait_ns=250 * _MILLI)
    assert observed.slow_peer == SlowPeerRule()
    assert reflex_rules(Policy(reflexes=Reflexes(start_wait=StartWaitReflex()))).start_wait == StartWaitRule()


@pytest.mark.parametrize("trigger", [Trigger.START_WAIT, Trigger.SLOW_PEER])
@pytest.mark.parametrize("action", [None, *Action])
def test_what_a_reflex_gives_up_is_computed(trigger: Trigger, action: Action | None) -> None:
    """Whatever the policy does about failures, and with the reflex's own words and field."""
    budgets = Budgets(RecomputeBudget(lambda: _NOW), RecomputeBudget(lambda: _NOW))
    policy = Policy(KvLoadFailure(action, max_recompute_tokens=1), hash="h")
    decided = decide_kv(
        KvLoss(100, trigger=trigger, reflex=f"{START_WAIT}: why"),
        vllm=Outcome.FAILED,
        policy=policy,
        observed=None,
        budgets=budgets,
    )
    assert (decided.outcome, decided.decided_by) == (Outcome.RECOMPUTED, DecidedBy.REFLEX)
    assert decided.reason == f"{trigger.value}{START_WAIT}: why"
    assert trigger_of(decided.reason) is trigger
    assert decided.field == f"{START_WAIT}.action"
