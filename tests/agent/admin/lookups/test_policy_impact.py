"""Field changes of a policy change: engines that no changed policy selects are not compared; no change is missed."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.admin.lookups.messages import engine_change, key_message
from penstock.agent.admin.lookups.policy_impact import engine_changes
from penstock.agent.policy.manifest.merge import merge_policies, policies_selecting

from tests.support.policy.policies import NOW, action, manifest, target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.admin.lookups.context import AgentContext
    from penstock.agent.policy.manifest import Manifest
    from penstock.proto.v1 import admin_pb2 as admin

ENGINES = {
    each.key: each
    for each in (
        target(str(number), role=role, zone=zone)
        for number, (role, zone) in enumerate((r, z) for r in ("decode", "prefill") for z in "abc")
    )
}
_LABELS = st.sampled_from([{}, {"role": "decode"}, {"role": "prefill"}, {"zone": "a"}, {"zone": "none"}])
_ROLLOUTS = st.none() | st.fixed_dictionaries(
    {"percent": st.sampled_from([0, 30, 60, 100])},
    optional={
        "candidate": st.sampled_from(
            [{"kvLoadFailure": action("fail")}, {"deferral": {"maxStartWait": "5s"}}]
        )
    },
)
_POLICIES = st.fixed_dictionaries(
    {
        "kvLoadFailure": st.sampled_from([action("recompute"), action("fail")]),
        "selector": _LABELS.map(lambda labels: {"matchLabels": labels}),
        "priority": st.sampled_from([100, 200]),
        "mode": st.sampled_from(["enforce", "observe"]),
        "rollout": _ROLLOUTS,
        "expiresAt": st.sampled_from([None, NOW - timedelta(1), NOW + timedelta(1)]),
    }
)
# By name: a store has one policy of each.
_STORES = st.dictionaries(st.sampled_from(["p", "q", "r"]), _POLICIES)


def _manifests(store: dict[str, dict[str, Any]]) -> list[Manifest]:
    found = []
    for name, spec in store.items():
        given_fields = {field: value for field, value in spec.items() if value is not None}
        if "expiresAt" in given_fields:
            given_fields["expiresAt"] = given_fields["expiresAt"].isoformat()
        found.append(manifest(name, **given_fields))
    return found


def _compared(before: Sequence[Manifest], after: Sequence[Manifest]) -> list[admin.EngineChange]:
    """Return the changes as a comparison of every engine finds them."""
    found = []
    for key, each in sorted(ENGINES.items()):
        old, new = (
            merge_policies(policies_selecting([policy for policy in side if not policy.expired(NOW)], each))
            for side in (before, after)
        )
        change = engine_change(old, new)
        if change is not None:
            change.key.CopyFrom(key_message(key))
            found.append(change)
    return found


@settings(deadline=None)
@given(_STORES, _STORES, st.sets(st.sampled_from(["p", "q", "r"])))
def test_no_change_is_missed(
    before: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]], changed: set[str]
) -> None:
    """As of a comparison of every engine: policies that come, go and change, with shares and candidates."""
    after = {name: spec for name, spec in before.items() if name not in changed}
    after |= {name: spec for name, spec in other.items() if name in changed}
    agent = cast("AgentContext", SimpleNamespace(now=NOW))
    sides = _manifests(before), _manifests(after)

    assert list(engine_changes(agent, ENGINES, *sides)) == _compared(*sides)
