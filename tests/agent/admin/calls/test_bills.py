"""GetBill of a real admin service: which engines, which policies, and how much of the log."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.admin.calls import bills
from penstock.agent.bill import sum_costs
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

from tests.support.agent.batches import PEER, deferral_end
from tests.support.agent.stories import SECOND, closed, outcome
from tests.support.policy.policies import document

if TYPE_CHECKING:
    from tests.support.agent.admin_server import AdminHarness

_TOKENS = 400


@pytest.fixture
def failing(harness: AdminHarness) -> AdminHarness:
    """Two engines: the first recomputes twice and has a measured price, the second fails once, and once two hours ago."""
    now = time.time_ns()
    first, second = harness.source("0"), harness.source("1")
    for name in ("a", "b"):
        harness.append(
            first,
            outcome(name, time_ns=now, decided_by=common.DECIDED_BY_VLLM, policy_hash=""),
            deferral_end(name, start_ns=now - SECOND, time_ns=now),
        )
    prefill = {"own_prefill_nano": 10_000}
    whole = [closed(f"c{number}", time_ns=now, prompt_tokens=100, gates=prefill) for number in range(5)]
    harness.append(first, *whole)
    for name, at in (("d", now), ("e", now - 7200 * SECOND)):
        failed = outcome(name, common.OUTCOME_FAILED, time_ns=at, decided_by=common.DECIDED_BY_VLLM)
        harness.append(second, failed)
    return harness


def _ask(harness: AdminHarness, seconds: int | None = 3600, **fields: Any) -> admin.Bill:
    request = admin.GetBillRequest(**fields)
    if seconds is not None:
        request.since.FromSeconds(seconds)
    found: admin.Bill = harness.stub.GetBill(request)
    return found


def test_each_engine_has_its_lines_and_its_price(failing: AdminHarness) -> None:
    """The most expensive first; the total is their sum."""
    found = _ask(failing)
    assert [(line.key.engine, line.peer, list(line.policies)) for line in found.lines] == [
        ("0", PEER, []),
        ("1", PEER, []),
    ]
    first, second = (line.costs for line in found.lines)
    assert (first.recomputed, first.tokens_recomputed, first.waits_in_vain) == (2, 2 * _TOKENS, 2)
    assert (first.prefill.ToNanoseconds(), first.tokens_unpriced) == (2 * _TOKENS * 100, 0)
    assert (second.failed, second.tokens_lost, second.tokens_unpriced) == (1, _TOKENS, 0)
    assert (found.total.recomputed, found.total.failed, found.total.waited_in_vain.seconds) == (2, 1, 2)
    assert [(price.key.engine, price.requests, price.tokens) for price in found.prices] == [
        ("0", 5, 500),
        ("1", 0, 0),
    ]
    assert (found.entries, found.truncated) == (10, False)


def test_it_says_when_the_log_begins(failing: AdminHarness) -> None:
    """Where that is later than the time asked for: what was before is not in the sums."""
    began = _ask(failing).log_begins.ToNanoseconds()
    assert abs(began - time.time_ns()) < 60 * SECOND
    assert not _ask(failing, seconds=0).HasField("log_begins")


def test_the_time_and_the_engines_are_those_asked_for(failing: AdminHarness) -> None:
    """A day without a time; an engine that is not asked about has no line."""
    assert _ask(failing, seconds=None).total.failed == 2
    one = admin.EngineSelector(engines=[common.EngineKey(engine="1")])
    assert {line.key.engine for line in _ask(failing, selector=one).lines} == {"1"}


@pytest.mark.parametrize("seconds", [-315_576_000_000, 315_576_000_000])
def test_no_time_is_too_long(failing: AdminHarness, seconds: int) -> None:
    """The longest duration of the wire, into the past for everything and into the future for nothing."""
    assert _ask(failing, seconds=seconds).total.failed == (2 if seconds > 0 else 0)
    suspects = admin.ListSuspectsRequest()
    suspects.since.FromSeconds(seconds)
    assert not failing.stub.ListSuspects(suspects).truncated


def test_a_line_names_the_policy_that_decided(harness: AdminHarness) -> None:
    """Of the merged policies the one with the section that decides; a hash that nobody knows stands for itself."""
    for manifest in (
        document("loads"),
        document("peers", kvLoadFailure=None, peerQuarantine={"failures": 5}),
        document("spans", kvLoadFailure=None, telemetry={"traceSampleRatio": 0.5}),
    ):
        spec = {name: section for name, section in manifest["spec"].items() if section is not None}
        text = json.dumps({**manifest, "spec": spec})
        harness.stub.ApplyPolicy(admin.ApplyPolicyRequest(manifest_json=text, all=True))
    core = harness.source("0")
    hash_ = harness.stub.GetEffectivePolicy(
        admin.GetEffectivePolicyRequest(key=common.EngineKey(engine="0"))
    ).hash
    now = time.time_ns()
    harness.append(
        core,
        outcome("a", time_ns=now, policy_hash=hash_),
        outcome("b", time_ns=now, policy_hash=hash_, decided_by=common.DECIDED_BY_QUARANTINE),
        outcome("c", time_ns=now, policy_hash=hash_, decided_by=common.DECIDED_BY_DEADLINE),
        outcome("d", time_ns=now, policy_hash="f" * 20),
    )
    assert sorted(list(line.policies) for line in _ask(harness).lines) == [
        ["hash ffffffffffff"],
        ["loads"],
        ["loads", "peers", "spans"],
        ["peers"],
    ]


def test_what_is_not_read_is_said(failing: AdminHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest count, and since when they are whole."""
    monkeypatch.setattr(bills, "_MAX_ENTRIES", 3)
    found = _ask(failing, seconds=None)
    assert (found.entries, found.truncated, found.HasField("oldest")) == (3, True, True)
    monkeypatch.undo()
    assert not _ask(failing, seconds=None).HasField("oldest")


def test_nothing_costs_nothing(harness: AdminHarness) -> None:
    """An empty log has no line and no price."""
    found = _ask(harness)
    assert (list(found.lines), list(found.prices), found.total) == ([], [], sum_costs([]))
