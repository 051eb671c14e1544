"""The merge of policies, its schedule, and its wire form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.parsing.quantities import parse_duration
from penstock.agent.policy.distribution.push_encoding import body_of, leaves_of, schedule_of
from penstock.agent.policy.manifest.automatic import (
    RecomputeStormReflex,
    Reflexes,
    SlowPeerReflex,
    StartWaitReflex,
)
from penstock.agent.policy.manifest.merge import Merged, effective_schedule, merge_policies
from penstock.agent.policy.manifest.sections import (
    Deferral,
    EcLoadFailure,
    Integrity,
    KvLoadFailure,
    PeerQuarantine,
    RecomputeBudget,
    Telemetry,
)
from penstock.proto.v1 import policy_pb2

from tests.support.policy.policies import NOW, action, manifest, target

if TYPE_CHECKING:
    import random

    from penstock.agent.policy.manifest.manifest import Manifest
    from pydantic import BaseModel


def _values(merged: Merged) -> dict[str, tuple[Any, str]]:
    return {path: (given_.value, given_.policy) for path, given_ in merged.body.items()}


def test_the_higher_priority_wins_field_by_field() -> None:
    """A field that the higher priority does not set comes from the next lower one."""
    low = manifest("low", kvLoadFailure={"action": "recompute", "maxRecomputeTokens": 10})
    high = manifest("high", priority=200, kvLoadFailure=action("fail"))
    assert _values(merge_policies([low, high])) == {
        "kvLoadFailure.action": ("fail", "high"),
        "kvLoadFailure.maxRecomputeTokens": (10, "low"),
    }


def test_ties_go_to_the_name_that_sorts_first() -> None:
    """At equal priority the name that sorts first wins, in any order of insertion."""
    one, two = manifest("b", kvLoadFailure=action("fail")), manifest("a", kvLoadFailure=action("auto"))
    assert (
        _values(merge_policies([one, two]))
        == _values(merge_policies([two, one]))
        == {"kvLoadFailure.action": ("auto", "a")}
    )


def test_policies_in_mode_observe_are_only_observed() -> None:
    """Observed policies are in the observed body and not in the enforced one."""
    enforced = manifest("enforced", kvLoadFailure=action("recompute"))
    observed = manifest("observed", priority=200, mode="observe", kvLoadFailure=action("fail"))
    merged = merge_policies([enforced, observed])
    assert merged.leaves() == {"kvLoadFailure.action": "recompute"}
    assert merged.observed_leaves() == {"kvLoadFailure.action": "fail"}
    assert merge_policies([enforced]).observed_leaves() is None
    assert merge_policies([enforced]).hash != merged.hash


def test_no_policy_is_an_empty_hash() -> None:
    """Without a policy the hash is empty and there is no schedule."""
    assert merge_policies([]) == Merged()
    steps = effective_schedule(
        [manifest(selector={"matchLabels": {"role": "x"}})], target(role="decode"), NOW
    )
    assert [step.merged.hash for step in steps] == [""]
    assert schedule_of(steps) == []


def test_a_schedule_runs_through_the_expiries() -> None:
    """A schedule has one entry for each expiry; the last has no end."""
    policies = [
        manifest("base", kvLoadFailure=action("recompute")),
        manifest("hour", priority=200, kvLoadFailure=action("fail"), expiresAt=(NOW + timedelta(hours=1)).isoformat()),
        manifest("soon", priority=300, kvLoadFailure=action("auto"), expiresAt=(NOW + timedelta(minutes=1)).isoformat()),
        manifest("gone", priority=800, kvLoadFailure=action("fail"), expiresAt=NOW.isoformat()),
    ]  # fmt: skip
    steps = effective_schedule(policies, target(), NOW)
    assert [(step.begins - NOW, step.merged.leaves()["kvLoadFailure.action"]) for step in steps] == [
        (timedelta(0), "auto"),
        (timedelta(minutes=1), "fail"),
        (timedelta(hours=1), "recompute"),
    ]
    schedule = schedule_of(steps)
    assert [entry.valid_for.ToTimedelta() for entry in schedule[:-1]] == [
        timedelta(minutes=1),
        timedelta(minutes=59),
    ]
    assert not schedule[-1].HasField("valid_for")
    assert [entry.hash for entry in schedule] == [step.merged.hash for step in steps]


def test_an_expiry_that_changes_nothing_is_no_step() -> None:
    """Neighbouring entries of a schedule differ."""
    policies = [
        manifest("strong", priority=200, kvLoadFailure=action("fail")),
        manifest("weak", kvLoadFailure=action("auto"), expiresAt=(NOW + timedelta(hours=1)).isoformat()),
    ]
    assert len(effective_schedule(policies, target(), NOW)) == 1


def test_a_schedule_may_end_in_vllms_own_configuration() -> None:
    """A schedule whose policies all expire ends with an empty body and an empty hash."""
    expiring = manifest(expiresAt=(NOW + timedelta(hours=1)).isoformat())
    last = schedule_of(effective_schedule([expiring], target(), NOW))[-1]
    assert (last.hash, last.body, last.HasField("valid_for")) == ("", policy_pb2.PolicyBody(), False)


def test_a_schedule_is_cut_to_what_an_engine_takes() -> None:
    """A long schedule keeps its first steps and its last one, with their times."""
    policies = [
        manifest(
            f"p{minute}",
            priority=200 - minute,
            kvLoadFailure={"maxRecomputeTokens": minute},
            expiresAt=(NOW + timedelta(minutes=minute)).isoformat(),
        )
        for minute in range(1, 81)
    ]
    steps = effective_schedule(policies, target(), NOW)
    schedule = schedule_of(steps)
    assert (len(steps), len(schedule)) == (81, 64)
    assert schedule[-1].hash == steps[-1].merged.hash == ""
    total = sum((entry.valid_for.ToTimedelta() for entry in schedule), timedelta())
    assert total == steps[-1].begins - NOW


_ACTIONS = st.sampled_from(["recompute", "fail", "auto"])
_TIMES = st.sampled_from([None, *((NOW + timedelta(minutes=n)).isoformat() for n in range(-1, 4))])


@st.composite
def _policies(draw: st.DrawFn) -> list[Manifest]:
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=5))
    found = []
    for name in names:
        spec: dict[str, Any] = {
            "priority": draw(st.integers(0, 3)),
            "mode": draw(st.sampled_from(["enforce", "observe"])),
            "kvLoadFailure": {"action": draw(_ACTIONS)},
        }
        if draw(st.booleans()):
            spec["deferral"] = {"maxStartWait": draw(st.sampled_from(["1s", "2s"]))}
        expires = draw(_TIMES)
        if expires is not None:
            spec["expiresAt"] = expires
        found.append(manifest(name, **spec))
    return found


@given(_policies(), st.randoms(use_true_random=False))
def test_the_order_of_insertion_does_not_matter(policies: list[Manifest], shuffle: random.Random) -> None:
    """Schedule and provenance do not depend on the order of insertion."""
    shuffled = list(policies)
    shuffle.shuffle(shuffled)
    assert effective_schedule(shuffled, target(), NOW) == effective_schedule(policies, target(), NOW)


@given(_policies())
def test_each_field_comes_from_the_policy_that_ranks_highest(policies: list[Manifest]) -> None:
    """The merge equals its definition, field by field."""
    merged = merge_policies(policies)
    for path, field in merged.body.items():
        givers = [policy for policy in policies if policy.spec.mode == "enforce" and path in policy.leaves]
        best = min(givers, key=lambda policy: (-policy.spec.priority, policy.name))
        assert (field.policy, field.value) == (best.name, best.leaves[path])
    assert set(merged.body) == {
        path for policy in policies if policy.spec.mode == "enforce" for path in policy.leaves
    }
    assert (merged.hash == "") == (not policies)


@given(_policies(), st.integers(-120, 400))
def test_a_schedule_says_what_would_be_computed_later(policies: list[Manifest], seconds: int) -> None:
    """At any time the schedule's entry equals the merge computed at that time."""
    later = NOW + timedelta(seconds=max(seconds, 0))
    steps = effective_schedule(policies, target(), NOW)
    in_force = [step for step in steps if step.begins <= later][-1]
    assert in_force.merged.hash == effective_schedule(policies, target(), later)[0].merged.hash
    assert all(before.begins < after.begins for before, after in pairwise(steps))


@given(_policies())
def test_a_body_survives_the_wire(policies: list[Manifest]) -> None:
    """leaves_of and body_of are inverse, also after serialization."""
    leaves = merge_policies(policies).leaves()
    assert leaves_of(policy_pb2.PolicyBody.FromString(body_of(leaves).SerializeToString())) == leaves


def test_the_manifest_and_the_wire_know_the_same_fields() -> None:
    """The manifest's fields and the message's fields are the same set."""

    def wire(descriptor: Any) -> set[str]:
        names = set()
        for field in descriptor.fields:
            inner = field.message_type
            below = inner is not None and inner.full_name != "google.protobuf.Duration"
            names |= {f"{field.json_name}.{name}" for name in wire(inner)} if below else {field.json_name}
        return names

    sections: dict[str, type[BaseModel]] = {
        "kvLoadFailure": KvLoadFailure,
        "ecLoadFailure": EcLoadFailure,
        "deferral": Deferral,
        "peerQuarantine": PeerQuarantine,
        "telemetry": Telemetry,
        "integrity": Integrity,
        "kvLoadFailure.recomputeBudget": RecomputeBudget,
        "reflexes": Reflexes,
        "reflexes.startWait": StartWaitReflex,
        "reflexes.slowPeer": SlowPeerReflex,
        "reflexes.recomputeStorm": RecomputeStormReflex,
    }
    manifest_fields = {
        f"{section}.{field.alias}"
        for section, model in sections.items()
        for field in model.model_fields.values()
    } - set(sections)
    assert wire(policy_pb2.PolicyBody.DESCRIPTOR) == manifest_fields


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=9))])
def test_an_expiry_is_a_moment_whatever_its_zone(zone: timezone) -> None:
    """Two spellings of one moment in two zones are one expiry."""
    moment = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
    policy = manifest(expiresAt=moment.astimezone(zone).isoformat())
    steps = effective_schedule([policy], target(), NOW)
    assert steps[1].begins - NOW == parse_duration("30m")
