"""Cached schedules equal freshly computed ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.model import EngineKey
from penstock.agent.parsing.label_selector import Target
from penstock.agent.policy.distribution.push_encoding import EffectivePolicies, schedule_of
from penstock.agent.policy.manifest.manifest import Manifest
from penstock.agent.policy.manifest.merge import effective_schedule
from penstock.agent.policy.store.interface import StoredPolicy
from penstock.proto.v1.policy_pb2 import Push

START = datetime(2026, 1, 1, tzinfo=UTC)
TARGETS = [Target(EngineKey("", "0"), "tiny", {"role": role}) for role in ("decode", "prefill")]


class _Store:
    """The store's interface that the cache reads: policies and generation."""

    def __init__(self) -> None:
        self.generation = 0
        self._manifests: list[Manifest] = []

    def policies(self):
        """Return the current policies."""
        return [StoredPolicy(each, 1, "imperative", "a", 0) for each in self._manifests]

    def clock_steps(self):
        """Nothing sets the clock that ends are told by."""
        return 0

    def end_of(self, manifest):
        """Return the policy's own end."""
        return manifest.spec.expires_at

    def replace(self, manifests):
        """Replace the policies and increment the generation."""
        self.generation += 1
        self._manifests = manifests


def manifest(name, priority, tokens, minutes, role):
    """Return a policy that expires *minutes* after the start."""
    return Manifest.model_validate(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "TransferPolicy",
            "metadata": {"name": name},
            "spec": {
                "priority": priority,
                "selector": {"matchLabels": {"role": role}},
                "expiresAt": (START + timedelta(minutes=minutes)).isoformat(),
                "kvLoadFailure": {"action": "auto", "maxRecomputeTokens": tokens},
            },
        }
    )


MANIFESTS = st.lists(
    st.tuples(
        st.integers(0, 9), st.integers(1, 3), st.integers(1, 30), st.sampled_from(["decode", "prefill"])
    ),
    max_size=4,
).map(lambda rows: [manifest(f"p{index}", *row) for index, row in enumerate(rows)])


@given(st.lists(st.one_of(MANIFESTS, st.integers(-40, 40)), max_size=20))
def test_kept_schedules_are_those_worked_out_anew(steps):
    """After any changes of policies and of the clock, set back included, cached equals computed."""
    store: Any = _Store()
    now = START
    schedules = EffectivePolicies(store)
    for step in steps:
        if isinstance(step, int):
            now += timedelta(minutes=step)
        else:
            store.replace(step)
        manifests = [policy.manifest for policy in store.policies()]
        for target in TARGETS:
            schedule, anew = schedules.of(target, now), effective_schedule(manifests, target, now)
            kept = schedule.at(now)
            assert [(each.begins, each.merged.hash) for each in kept] == [
                (each.begins, each.merged.hash) for each in anew
            ]
            assert Push.FromString(schedule.encoded(now)) == Push(schedule=schedule_of(anew))
            assert schedule.hashes == tuple(each.merged.hash for each in anew)
            assert schedule.begins == tuple(each.begins.timestamp() for each in anew[1:])


def test_engines_that_the_same_policies_select_share_a_schedule():
    """Engines with the same selection share one object; another selection or generation has its own."""
    store: Any = _Store()
    store.replace([manifest("a", 1, 1, 5, "decode")])
    schedules = EffectivePolicies(store)
    one, two = (Target(EngineKey("", key), "tiny", {"role": "decode", "n": key}) for key in "12")
    other = Target(EngineKey("", "3"), "tiny", {"role": "prefill"})
    shared = schedules.of(one, START)
    assert schedules.of(two, START) is shared
    assert schedules.of(other, START) is not shared
    after = START + timedelta(minutes=6)
    assert schedules.of(one, after) is schedules.of(two, after) is not shared
    store.replace([manifest("a", 1, 2, 5, "decode")])
    assert schedules.of(one, START) is schedules.of(two, START) is not shared
    assert schedules.of(one, START).hashes != shared.hashes


def test_a_push_and_a_schedule_one_behind_the_other_are_one_push():
    """Concatenated bytes of a shared part and an engine's part parse as one push."""
    store: Any = _Store()
    store.replace([manifest("a", 1, 1, 5, "decode")])
    schedule = EffectivePolicies(store).of(TARGETS[0], START)
    own = Push(nonce=7, paused=True)
    both = Push.FromString(own.SerializeToString() + schedule.encoded(START))
    assert (both.nonce, both.paused) == (7, True)
    assert list(both.schedule) == schedule_of(schedule.at(START))
