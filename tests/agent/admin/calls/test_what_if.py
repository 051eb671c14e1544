"""WhatIf: which policies are replayed against which engines' loads, and what is refused."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.agent.admin.calls import what_if
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

from tests.support.agent.batches import deferral_end
from tests.support.agent.stories import SECOND, outcome

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import Event

    from tests.support.agent.admin_server import AdminHarness

_TOKENS = 400


def _policy(name: str, **spec: Any) -> str:
    return json.dumps(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "TransferPolicy",
            "metadata": {"name": name},
            "spec": spec,
        }
    )


_RECOMPUTE = {"kvLoadFailure": {"action": "recompute"}}
_LIMITED = {"kvLoadFailure": {"action": "auto", "maxRecomputeTokens": _TOKENS - 1}}


def _failed(name: str, now: int) -> tuple[Event, ...]:
    return (
        outcome(name, common.OUTCOME_FAILED, time_ns=now, decided_by=common.DECIDED_BY_VLLM),
        deferral_end(name, start_ns=now - SECOND, time_ns=now),
    )


@pytest.fixture
def failing(harness: AdminHarness) -> AdminHarness:
    """Two engines with three failures and one, and one failure of two hours ago."""
    now = time.time_ns()
    first, second = harness.source("0"), harness.source("1")
    for name in ("a", "b", "c"):
        harness.append(first, *_failed(name, now))
    harness.append(second, *_failed("d", now))
    harness.append(second, *_failed("e", now - 7200 * SECOND))
    return harness


def _ask(harness: AdminHarness, *manifests: str, seconds: int = 3600, **fields: Any) -> admin.WhatIfResponse:
    request = admin.WhatIfRequest(manifests_json=manifests, **fields)
    request.since.FromSeconds(seconds)
    response: admin.WhatIfResponse = harness.stub.WhatIf(request)
    return response


def test_each_engine_is_replayed_by_itself(failing: AdminHarness) -> None:
    """What was, what would have been, and which policies say so."""
    found = _ask(failing, _policy("b", **_RECOMPUTE))
    assert [(each.key.engine, each.was.failed, each.would.recomputed) for each in found.engines] == [
        ("0", 3, 3),
        ("1", 1, 1),
    ]
    first = found.engines[0]
    assert (list(first.policies), first.would.tokens_recomputed, first.was.waited.seconds) == (
        ["b"],
        3 * _TOKENS,
        3,
    )
    assert (found.entries, found.truncated) == (8, False)
    older = _ask(failing, _policy("b", **_RECOMPUTE), seconds=10_000)
    assert [each.was.failed for each in older.engines] == [3, 2]


def test_the_agents_policies_stay_unless_they_are_replaced(failing: AdminHarness) -> None:
    """By a policy of the same name, or by --only; without any policy vLLM's own setting is what was seen."""
    failing.stub.ApplyPolicy(
        admin.ApplyPolicyRequest(manifest_json=_policy("present", **_RECOMPUTE), all=True)
    )
    quarantine = _policy("more", peerQuarantine={"failures": 5})
    found = _ask(failing, quarantine).engines[0]
    assert (list(found.policies), found.would.recomputed) == (["more", "present"], 3)
    found = _ask(failing, _policy("present", **_LIMITED)).engines[0]
    assert (list(found.policies), found.would.failed) == (["present"], 3)
    found = _ask(failing, quarantine, only=True).engines[0]
    assert (list(found.policies), found.would.failed) == (["more"], 3)
    assert not _ask(failing, only=True).engines[0].policies
    (listed,) = failing.stub.ListPolicies(admin.ListPoliciesRequest()).policies
    assert listed.generation == 1


def test_a_policy_selects_and_so_does_the_question(failing: AdminHarness) -> None:
    """A policy for other engines changes nothing; an engine that is not asked about is not in the answer."""
    other = {**_RECOMPUTE, "selector": {"matchLabels": {"role": "nobody"}}}
    found = _ask(failing, _policy("b", **other))
    assert [(list(each.policies), each.would.failed) for each in found.engines] == [([], 3), ([], 1)]
    one = admin.EngineSelector(engines=[found.engines[1].key])
    assert [each.key.engine for each in _ask(failing, selector=one).engines] == ["1"]


def test_a_policy_in_mode_observe_is_replayed_as_enforced(failing: AdminHarness) -> None:
    """It is what its author asks."""
    found = _ask(failing, _policy("b", mode="observe", **_RECOMPUTE))
    assert found.engines[0].would.recomputed == 3


@pytest.mark.parametrize(
    ("manifests", "words"),
    [
        (["{"], "manifest 1"),
        ([_policy("b", kvLoadFailure={"action": "maybe"})], "policy 'b': spec.kvLoadFailure.action"),
        ([_policy("b", **_RECOMPUTE)] * 2, "policy 'b' was given twice"),
    ],
)
def test_a_wrong_manifest_is_refused(failing: AdminHarness, manifests: list[str], words: str) -> None:
    """As ApplyPolicy refuses it, with the policy's name."""
    with pytest.raises(grpc.RpcError) as caught:
        _ask(failing, *manifests)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in str(caught.value.details())


def test_what_is_not_read_is_said(failing: AdminHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest count."""
    monkeypatch.setattr(what_if, "_MAX_ENTRIES", 4)
    found = _ask(failing, _policy("b", **_RECOMPUTE), seconds=10_000)
    assert (found.entries, found.truncated) == (4, True)


def test_no_number_of_an_engine_is_too_large(harness: AdminHarness) -> None:
    """Sums end where the wire's numbers do, and a wait that ends before it began lasts no time."""
    core, now = harness.source("0"), time.time_ns()
    for name in ("a", "b"):
        harness.append(
            core,
            outcome(name, common.OUTCOME_RECOMPUTED, time_ns=now, tokens_recomputed=2**64 - 1),
            deferral_end(name, start_ns=2**64 - 1, time_ns=now),
            deferral_end(name, start_ns=1, time_ns=2**64 - 1),
        )
    (found,) = _ask(harness, _policy("b", **_RECOMPUTE)).engines
    assert found.was.tokens_recomputed == found.would.tokens_recomputed == 2**64 - 1
    assert found.was.waited.seconds > 0


def test_reflexes_are_those_of_the_policies(failing: AdminHarness) -> None:
    """Enforced ones act; those of a policy in mode observe are there; all of them if asked for."""
    assert not _ask(failing).engines[0].reflexes
    given = _policy("r", reflexes={"slowPeer": {"action": "enforce"}, "startWait": {"action": "observe"}})
    (first, *_) = _ask(failing, given).engines
    assert {each.field: each.acts for each in first.reflexes} == {
        "reflexes.startWait": False,
        "reflexes.slowPeer": True,
    }
    (first, *_) = _ask(failing, given, reflexes=True).engines
    assert {each.field: each.acts for each in first.reflexes} == {
        "reflexes.startWait": True,
        "reflexes.slowPeer": True,
        "reflexes.recomputeStorm": False,
    }
    assert all(each.price_unknown == each.asked for each in first.reflexes)
