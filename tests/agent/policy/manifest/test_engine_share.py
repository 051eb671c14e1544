"""Which engines a percentage selects: more with a larger one, about that share, and the same in each agent."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.errors import ManifestError
from penstock.agent.policy.manifest.engine_share import engine_identity, in_share
from penstock.agent.policy.manifest.manifest import parse_manifest
from penstock.agent.policy.manifest.merge import effective_schedule, merge_policies, policies_selecting

from tests.support.policy.policies import NOW, action, document, manifest, target

if TYPE_CHECKING:
    import random

PERCENTS = st.integers(0, 100)
NAMES = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True)
ENGINES = [f"ns/decode-{number}//0" for number in range(4_000)]


@given(st.text(max_size=60), NAMES, PERCENTS, PERCENTS)
def test_a_larger_percentage_only_adds_engines(identity: str, policy: str, one: int, other: int) -> None:
    """An engine that is in stays in."""
    less, more = sorted((one, other))
    assert in_share(identity, policy, more) or not in_share(identity, policy, less)


@given(st.text(max_size=60), NAMES)
def test_none_and_all_are_exact(identity: str, policy: str) -> None:
    """0 selects no engine, 100 each."""
    assert not in_share(identity, policy, 0)
    assert in_share(identity, policy, 100)


@given(NAMES, PERCENTS)
def test_the_share_is_close_to_the_percentage(policy: str, percent: int) -> None:
    """Within five standard deviations, of 4,000 engines."""
    share = sum(in_share(engine, policy, percent) for engine in ENGINES) / len(ENGINES)
    expected = percent / 100
    assert abs(share - expected) <= 5 * (expected * (1 - expected) / len(ENGINES)) ** 0.5 + 1e-9


@given(NAMES, NAMES)
def test_policies_select_independently(one: str, other: str) -> None:
    """Two policies at 50 percent share a quarter of the engines, not a half: no engine is everybody's first."""
    if one == other:
        return
    both = sum(in_share(engine, one, 50) and in_share(engine, other, 50) for engine in ENGINES)
    assert abs(both / len(ENGINES) - 0.25) < 5 * (0.25 * 0.75 / len(ENGINES)) ** 0.5


def test_the_hash_is_the_published_one() -> None:
    """SHA-256 of engine, a zero byte and policy, modulo 10,000: another program can compute it."""
    for engine in ENGINES[:200]:
        slot = int(hashlib.sha256(f"{engine}\0retry".encode()).hexdigest(), 16) % 10_000
        assert in_share(engine, "retry", 37) == (slot < 3_700)


def test_another_process_selects_the_same() -> None:
    """It does not depend on Python's own hashes."""
    program = (
        "import json, sys\n"
        "from penstock.agent.policy.manifest.engine_share import in_share\n"
        "print(json.dumps([in_share(f'ns/decode-{n}//0', 'retry', 30) for n in range(100)]))"
    )
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert json.loads(out) == [in_share(engine, "retry", 30) for engine in ENGINES[:100]]


def test_an_engine_is_known_by_its_pod() -> None:
    """Two pods have an engine 0 each; a restart of the agent changes nothing about either."""
    one = target("0", POD_NAMESPACE="llm", POD_NAME="decode-1")
    other = target("0", POD_NAMESPACE="llm", POD_NAME="decode-2")
    assert engine_identity(one) == "llm/decode-1//0"
    assert engine_identity(other) == "llm/decode-2//0"
    assert engine_identity(target("1", server="b", NODE_NAME="n7")) == "/n7/b/1"
    assert engine_identity(target("0")).endswith("//0")


def test_a_policy_selects_by_selector_and_share() -> None:
    """Both hold; without spec.rollout the selector decides alone."""
    pods = [target("0", role="decode", POD_NAME=f"decode-{number}") for number in range(200)]
    whole = manifest("retry", selector={"matchLabels": {"role": "decode"}})
    part = manifest("retry", selector={"matchLabels": {"role": "decode"}}, rollout={"percent": 20})
    assert all(whole.selects(pod) for pod in pods)
    assert 20 <= sum(part.selects(pod) for pod in pods) <= 60
    assert not any(part.selects(target("0", role="prefill", POD_NAME=f"p-{n}")) for n in range(200))
    none = manifest("retry", rollout={"percent": 0})
    assert not any(none.selects(pod) for pod in pods)


@given(st.randoms(use_true_random=False), PERCENTS)
def test_the_order_of_policies_does_not_matter(chance: random.Random, percent: int) -> None:
    """The effective policy is the same for any order in the store."""
    policies = [
        manifest(f"p{number}", priority=number, rollout={"percent": percent}, kvLoadFailure=action(how))
        for number, how in enumerate(("fail", "recompute", "auto"))
    ]
    shuffled = policies.copy()
    chance.shuffle(shuffled)
    engine = target("0", POD_NAME="decode-7")
    assert effective_schedule(policies, engine, NOW) == effective_schedule(shuffled, engine, NOW)
    assert {policy.name for policy in policies_selecting(shuffled, engine)} == {
        policy.name for policy in policies if in_share(engine_identity(engine), policy.name, percent)
    }


def test_the_percentage_is_no_field_of_the_effective_policy() -> None:
    """An engine that has the policy does not see that others get it: the hash stays."""
    small, large = manifest("retry", rollout={"percent": 5}), manifest("retry", rollout={"percent": 50})
    assert (
        merge_policies([small]).hash
        == merge_policies([large]).hash
        == merge_policies([manifest("retry")]).hash
    )
    assert "rollout.percent" not in small.leaves


@pytest.mark.parametrize("percent", [-1, 101, 5.5, "5", True, None])
def test_a_bad_percentage_is_refused(percent: object) -> None:
    """The sentence says what is allowed."""
    with pytest.raises(ManifestError, match=r"spec\.rollout\.percent is .*use a whole number from 0 to 100"):
        parse_manifest(json.dumps(document(rollout={"percent": percent})))


def test_a_rollout_alone_is_no_policy() -> None:
    """A share of nothing sets nothing."""
    with pytest.raises(ManifestError, match="sets no field"):
        parse_manifest(json.dumps(document(kvLoadFailure={}, rollout={"percent": 5})))


def test_part_of_the_engines_is_not_everywhere() -> None:
    """A file that makes loads fail in 5 percent of the engines is not the incident of 'fail everywhere'."""
    assert manifest(kvLoadFailure=action("fail")).fails_everywhere
    assert not manifest(kvLoadFailure=action("fail"), rollout={"percent": 5}).fails_everywhere


def test_a_candidate_takes_the_place_of_the_policy_in_its_share() -> None:
    """Also of a field that it does not have; the others keep the policy, whatever the percentage."""
    candidate = {"kvLoadFailure": {"action": "fail"}}
    base = {"kvLoadFailure": {"action": "auto", "maxRecomputeTokens": 64}, "deferral": {"maxStartWait": "3s"}}
    engines = [target(str(number), POD_NAME=f"pod-{number}") for number in range(200)]
    before = merge_policies([manifest("p", **base)])
    had: set[str] = set()
    for percent in (0, 5, 50, 100):
        policy = manifest("p", **base, rollout={"percent": percent, "candidate": candidate})
        merged = {each.key: merge_policies(policies_selecting([policy], each)) for each in engines}
        have = {
            key.engine for key, found in merged.items() if found.leaves() == {"kvLoadFailure.action": "fail"}
        }
        assert have == {each.key.engine for each in engines if policy.in_rollout(each)}
        assert had <= have
        assert all(found.hash == before.hash for key, found in merged.items() if key.engine not in have)
        assert all(policy.selects(each) for each in engines)
        had = have
    assert len(had) == len(engines)


def test_a_candidate_sets_something() -> None:
    """As a policy does."""
    with pytest.raises(ManifestError, match=r"spec\.rollout\.candidate sets no field"):
        manifest("p", rollout={"percent": 5, "candidate": {}})


def test_a_candidate_that_fails_everywhere_is_known_before_it_does() -> None:
    """So that it is confirmed as such a policy is."""
    candidate = {"kvLoadFailure": {"action": "fail"}}
    assert not manifest("p", selector={}, kvLoadFailure={"action": "recompute"}).fails_everywhere
    policy = manifest(
        "p",
        selector={},
        kvLoadFailure={"action": "recompute"},
        rollout={"percent": 5, "candidate": candidate},
    )
    assert policy.fails_everywhere
