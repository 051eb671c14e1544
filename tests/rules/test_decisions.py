"""What must hold for every decision about a failed load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.proto.v1 import common_pb2
from penstock.rules.decisions import (
    REFLEX_TRIGGERS,
    Budgets,
    DecidedBy,
    EcLoss,
    KvLoss,
    Outcome,
    Trigger,
    decide_ec,
    decide_kv,
)
from penstock.rules.policy import (
    NO_POLICY,
    Action,
    Deferral,
    EcLoadFailure,
    KvLoadFailure,
    Policy,
    PolicyBody,
    PolicySource,
)
from penstock.rules.recompute_budget import RecomputeBudget

from tests.support.manual_clock import SECOND, ManualClock
from tests.support.policy.full_budgets import full_budgets

AUTO = Policy(kv_load_failure=KvLoadFailure(Action.AUTO, 4096, 500, Action.FAIL))


@pytest.mark.parametrize(
    ("loss", "policy", "drained", "reason"),
    [
        (KvLoss(412), NO_POLICY, 0, "vLLM's own kv_load_failure_policy: fail"),
        (KvLoss(412), AUTO, 0, "412 tokens lost, at most 4096 are recomputed"),
        (KvLoss(9000), AUTO, 0, "9000 tokens lost, at most 4096 are recomputed"),
        (
            KvLoss(412),
            AUTO,
            4000,
            "412 tokens lost, the budget of 500 tokens/s has room for 96; overBudget: fail",
        ),
        (
            KvLoss(412, trigger=Trigger.QUARANTINE),
            AUTO,
            0,
            "the peer is quarantined; 412 tokens lost, at most 4096 are recomputed",
        ),
        (
            KvLoss(412, trigger=Trigger.DEADLINE),
            Policy(deferral=Deferral(on_timeout=Action.RECOMPUTE)),
            0,
            "the wait was over its deadline; deferral.onTimeout: recompute",
        ),
        (
            KvLoss(412, exported=True),
            Policy(kv_load_failure=KvLoadFailure(Action.RECOMPUTE)),
            0,
            "another connector may have passed tainted blocks on, and these cannot be called back",
        ),
    ],
)
def test_reasons(loss, policy, drained, reason):
    """The reason names the numbers and the field that decided."""
    pair = full_budgets(500, 4096)
    assert pair.enforced.acquire(drained)
    decision = decide_kv(loss, vllm=Outcome.FAILED, policy=policy, observed=None, budgets=pair)
    assert decision.reason == reason


NAMED = (
    PolicySource("decode", 3, frozenset({"kvLoadFailure.action", "ecLoadFailure.action"})),
    PolicySource("limits", 1, frozenset({"kvLoadFailure.maxRecomputeTokens", "deferral.onTimeout"})),
)


@pytest.mark.parametrize(
    ("loss", "policy", "name"),
    [
        (KvLoss(1), Policy(), ""),
        (KvLoss(1), Policy(kv_load_failure=KvLoadFailure(Action.FAIL)), "policy decode, generation 3"),
        (
            KvLoss(9000),
            Policy(kv_load_failure=KvLoadFailure(Action.AUTO, 4096)),
            "policy limits, generation 1",
        ),
        (
            KvLoss(1, trigger=Trigger.DEADLINE),
            Policy(deferral=Deferral(on_timeout=Action.FAIL)),
            "policy limits, generation 1",
        ),
        (
            KvLoss(412),
            Policy(kv_load_failure=KvLoadFailure(Action.AUTO, None, 1, Action.FAIL)),
            "policy 0123456789ab",
        ),
    ],
)
def test_a_decision_names_the_policy_of_its_field(loss, policy, name):
    """The policy that set the field that decided; the hash where the agent did not name it."""
    pair = full_budgets(1, 1)
    policy = replace(policy, hash="0123456789abcdef", sources=NAMED)
    assert decide_kv(loss, vllm=Outcome.FAILED, policy=policy, observed=None, budgets=pair).policy == name


def test_a_decision_about_encoder_outputs_names_its_policy():
    """As one about KV does; without an action of a policy there is no name."""
    policy = Policy(ec_load_failure=EcLoadFailure(Action.FAIL), hash="h", sources=NAMED)
    decision = decide_ec(EcLoss(2), default=Outcome.RECOMPUTED, policy=policy, observed=None)
    assert decision.policy == "policy decode, generation 3"
    assert not decide_ec(EcLoss(2), default=Outcome.FAILED, policy=NO_POLICY, observed=None).policy


def test_numbers_are_the_wires():
    """Outcomes and deciders go on the wire as they are."""
    for outcome in Outcome:
        assert common_pb2.Outcome.Value(f"OUTCOME_{outcome.name}") == outcome
    for decided_by in DecidedBy:
        assert common_pb2.DecidedBy.Value(f"DECIDED_BY_{decided_by.name}") == decided_by


def test_observe_reports_without_acting():
    """An observed policy decides beside the enforced one and takes from a budget of its own."""
    pair = full_budgets(100, 100)
    observed = PolicyBody(kv_load_failure=KvLoadFailure(Action.AUTO, 100, 100))
    decisions = [
        decide_kv(KvLoss(100), vllm=Outcome.FAILED, policy=NO_POLICY, observed=observed, budgets=pair)
        for _ in range(2)
    ]
    assert [(each.outcome, each.decided_by) for each in decisions] == [(Outcome.FAILED, DecidedBy.VLLM)] * 2
    observations = [each.observed for each in decisions if each.observed]
    assert [each.outcome for each in observations] == [Outcome.RECOMPUTED, Outcome.FAILED]
    assert observations[1].decided_by is DecidedBy.BUDGET
    assert pair.enforced.available() == 100


def test_ec_observe_reports_without_acting():
    """An observed policy about encoder outputs decides beside the enforced one."""
    observed = PolicyBody(ec_load_failure=EcLoadFailure(Action.AUTO, 1))
    decision = decide_ec(EcLoss(2), default=Outcome.RECOMPUTED, policy=NO_POLICY, observed=observed)
    assert decision.outcome is Outcome.RECOMPUTED
    assert decision.observed is not None
    assert decision.observed.outcome is Outcome.FAILED


def test_budgets_follow_the_policy():
    """Each bucket takes its limits from its own body, and becomes unlimited where none is set."""
    pair = full_budgets()
    limited = KvLoadFailure(Action.AUTO, 300, 100)
    pair.on_policy_change(Policy(kv_load_failure=limited, hash="a"))
    assert (pair.enforced.capacity, pair.observed.rate) == (300, None)
    pair.on_policy_change(Policy(observed=PolicyBody(kv_load_failure=limited), hash="b"))
    assert (pair.enforced.rate, pair.observed.capacity) == (None, 300)


rules = st.builds(
    KvLoadFailure,
    st.none() | st.sampled_from(Action),
    st.none() | st.integers(0, 300),
    st.none() | st.integers(0, 300),
    st.sampled_from([None, Action.RECOMPUTE, Action.FAIL]),
)
bodies = st.builds(
    Policy,
    kv_load_failure=st.none() | rules,
    deferral=st.none()
    | st.builds(Deferral, on_timeout=st.sampled_from([None, Action.RECOMPUTE, Action.FAIL])),
)
losses = st.builds(KvLoss, st.integers(0, 400), st.booleans(), st.sampled_from(Trigger)).map(
    lambda loss: replace(loss, reflex="reflexes.some: why" if loss.trigger in REFLEX_TRIGGERS else "")
)


def _is_by_reflex(loss):
    """Return whether a reflex decides, which always recomputes; not where other engines may have the blocks."""
    return loss.trigger in REFLEX_TRIGGERS and not loss.exported


@given(loss=losses, vllm=st.sampled_from(Outcome), observed=st.none() | bodies, rest=bodies)
def test_without_an_action_vllm_holds(loss, vllm, observed, rest):
    """Where no action is set the outcome is vLLM's, whatever is observed and whatever else a policy sets."""
    silent = Policy(kv_load_failure=KvLoadFailure(None, *(_limits(rest))))
    for policy in (NO_POLICY, silent):
        pair = full_budgets(0, 0)
        decision = decide_kv(loss, vllm=vllm, policy=policy, observed=observed, budgets=pair)
        assert decision.outcome is (Outcome.RECOMPUTED if _is_by_reflex(loss) else vllm)
        assert (decision.decided_by is DecidedBy.VLLM) == (loss.trigger is Trigger.FAILURE)


def _limits(body):
    rule = body.kv_load_failure or KvLoadFailure()
    return rule.max_recompute_tokens, rule.tokens_per_second, rule.over_budget


@given(
    steps=st.lists(st.tuples(losses, st.integers(0, SECOND)), max_size=20),
    policy=bodies,
    observed=st.none() | bodies,
    vllm=st.sampled_from(Outcome),
)
def test_invariants(steps, policy, observed, vllm):
    """Size and export bound every recompute by a policy, and the budget is what enforced ``auto`` took from it."""
    clock = ManualClock()
    pair = Budgets(RecomputeBudget(clock), RecomputeBudget(clock))
    pair.on_policy_change(
        Policy(kv_load_failure=policy.kv_load_failure, deferral=policy.deferral, observed=observed)
    )
    rule = policy.kv_load_failure or KvLoadFailure()
    allowed, taken = pair.enforced.capacity * SECOND, 0
    for loss, pause in steps:
        clock.now += pause
        allowed += pause * (pair.enforced.rate or 0)
        before = pair.enforced.available()
        decision = decide_kv(loss, vllm=vllm, policy=policy, observed=observed, budgets=pair)
        spent = (before or 0) - (pair.enforced.available() or 0)
        taken += spent
        on_timeout = (
            policy.deferral.on_timeout if policy.deferral and loss.trigger is Trigger.DEADLINE else None
        )
        recomputed = decision.outcome is Outcome.RECOMPUTED
        if _is_by_reflex(loss):
            assert recomputed
            assert (decision.decided_by, decision.observed) == (DecidedBy.REFLEX, None)
            continue
        assert spent in {0, loss.tokens if recomputed else 0}
        if (on_timeout or rule.action) is not None and loss.exported:
            assert not recomputed
        if on_timeout is None and rule.action is Action.AUTO and rule.max_recompute_tokens is not None:
            assert not (recomputed and loss.tokens > rule.max_recompute_tokens)
        assert (decision.observed is None) == (observed is None)
    assert taken * SECOND <= allowed


@given(loss=losses, policy=bodies, observed=bodies, vllm=st.sampled_from(Outcome), rate=st.integers(0, 300))
def test_observing_changes_nothing(loss, policy, observed, vllm, rate):
    """The enforced decision and its budget are the same with and without an observed policy."""
    with_it, without_it = full_budgets(rate, 300), full_budgets(rate, 300)
    seen = decide_kv(loss, vllm=vllm, policy=policy, observed=observed, budgets=with_it)
    alone = decide_kv(loss, vllm=vllm, policy=policy, observed=None, budgets=without_it)
    assert (seen.outcome, seen.decided_by, seen.reason) == (alone.outcome, alone.decided_by, alone.reason)
    assert with_it.enforced.available() == without_it.enforced.available()
