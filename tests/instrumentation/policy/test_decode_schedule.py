"""What a push may say: the engine's own bounds."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.instrumentation.policy.active_policy import PolicySchedule, ScheduleEntry
from penstock.instrumentation.policy.decode_push import decode_schedule
from penstock.proto.v1 import policy_pb2
from penstock.proto.v1.policy_pb2 import Push
from penstock.rules.decode import RefusedError
from penstock.rules.policy import (
    NO_POLICY,
    Action,
    Deferral,
    EcLoadFailure,
    Integrity,
    IntegrityAction,
    KvLoadFailure,
    PeerQuarantine,
    Policy,
    PolicyBody,
    PolicySource,
    Telemetry,
)

ALL = tuple(field.name for field in policy_pb2.PolicyBody.DESCRIPTOR.fields)


def push(*schedule: dict[str, Any], **fields: Any) -> Push:
    """Build a push from JSON."""
    return json_format.ParseDict({"schedule": list(schedule), **fields}, Push())


def body(**sections: Any) -> dict[str, Any]:
    """Build an entry that holds for good."""
    return {"hash": "h", "body": sections}


FULL = {
    "kvLoadFailure": {
        "action": "FAILURE_ACTION_AUTO",
        "maxRecomputeTokens": 4096,
        "recomputeBudget": {"tokensPerSecond": 20000},
        "overBudget": "FAILURE_ACTION_FAIL",
    },
    "ecLoadFailure": {"action": "FAILURE_ACTION_RECOMPUTE", "maxRecomputeItems": 8},
    "deferral": {"maxStartWait": "30s", "maxTransferWait": "5.5s", "onTimeout": "FAILURE_ACTION_RECOMPUTE"},
    "peerQuarantine": {"failures": 5, "window": "30s", "duration": "60s", "maxPeersPercent": 50},
    "telemetry": {"traceSampleRatio": 0.25, "failureLogInterval": "5s"},
    "integrity": {"sampleRatio": 0.01, "action": "INTEGRITY_ACTION_ENFORCE"},
}
FULL_BODY: dict[str, Any] = {
    "kv_load_failure": KvLoadFailure(Action.AUTO, 4096, 20000, Action.FAIL),
    "ec_load_failure": EcLoadFailure(Action.RECOMPUTE, 8),
    "deferral": Deferral(30.0, 5.5, Action.RECOMPUTE),
    "peer_quarantine": PeerQuarantine(5, 30.0, 60.0, 50),
    "telemetry": Telemetry(0.25, 5.0),
    "integrity": Integrity(0.01, IntegrityAction.ENFORCE),
}


def test_everything_a_policy_can_say() -> None:
    """Every field arrives under its name, times in seconds; body and observed are apart."""
    found = decode_schedule(
        push({"hash": "h", "body": FULL, "observed": {"telemetry": {"traceSampleRatio": 1.0}}}), ALL
    )
    observed = PolicyBody(telemetry=Telemetry(1.0))
    assert found == [ScheduleEntry(Policy(**FULL_BODY, hash="h", observed=observed))]


def test_names_of_policies() -> None:
    """Names, generations and fields arrive; one that a client should not read is left out, and refuses nothing."""
    action = {"kvLoadFailure": {"action": "FAILURE_ACTION_FAIL"}}
    named = [
        {"name": "decode", "generation": 3, "fields": ["kvLoadFailure.action", "x" * 129]},
        {"name": "a\nb", "generation": 1},
        {"name": "", "generation": 1},
        {"name": "x" * 64, "generation": 1},
        {"name": "é", "generation": 1},
    ]
    (entry,) = decode_schedule(push({**body(**action), "policies": named}), ALL)
    assert entry.policy.sources == (PolicySource("decode", 3, frozenset({"kvLoadFailure.action"})),)
    assert entry.policy.name_of("kvLoadFailure.action") == "policy decode, generation 3"
    assert entry.policy.name_of("kvLoadFailure.maxRecomputeTokens") == "policy h"
    assert NO_POLICY.name_of("kvLoadFailure.action") == ""
    many = [{"name": f"p{number}", "generation": 1} for number in range(300)]
    (entry,) = decode_schedule(push({**body(**action), "policies": many}), ALL)
    assert len(entry.policy.sources) == 16


def test_more_about_a_policy_s_name_refuses_nothing() -> None:
    """A newer agent may say more about who wrote a policy; what it says about the policy itself is still checked."""
    newer = push({**body(**FULL), "policies": [{"name": "decode", "generation": 3}]})
    source = newer.schedule[0].policies[0]
    source.MergeFromString(source.SerializeToString() + b"\xfa\x07\x01x")
    (entry,) = decode_schedule(newer, ALL)
    assert [each.name for each in entry.policy.sources] == ["decode"]


def test_absent_fields_leave_vllm_alone() -> None:
    """A section without fields and an empty push set nothing."""
    assert decode_schedule(push(), ALL) == []
    assert decode_schedule(push({}), ALL) == [ScheduleEntry(NO_POLICY)]
    assert decode_schedule(push(body(kvLoadFailure={})), ALL) == [
        ScheduleEntry(Policy(KvLoadFailure(), hash="h"))
    ]


@pytest.mark.parametrize(
    ("section", "field", "words"),
    [
        ({"kvLoadFailure": {"action": 9}}, "kvLoadFailure.action", "value 9"),
        ({"integrity": {"action": 9}}, "integrity.action", "value 9"),
        ({"integrity": {"sampleRatio": 1.5}}, "integrity.sampleRatio", "1.5"),
        ({"kvLoadFailure": {"overBudget": 3}}, "kvLoadFailure.overBudget", "recompute or fail"),
        (
            {"kvLoadFailure": {"maxRecomputeTokens": 1 << 40}},
            "kvLoadFailure.maxRecomputeTokens",
            "1099511627776",
        ),
        (
            {"kvLoadFailure": {"recomputeBudget": {"tokensPerSecond": 1 << 40}}},
            "kvLoadFailure.recomputeBudget.tokensPerSecond",
            "from 0 to",
        ),
        ({"ecLoadFailure": {"action": 77}}, "ecLoadFailure.action", "value 77"),
        ({"ecLoadFailure": {"maxRecomputeItems": 1 << 40}}, "ecLoadFailure.maxRecomputeItems", "from 0 to"),
        ({"deferral": {"maxStartWait": "0s"}}, "deferral.maxStartWait", "0 s"),
        ({"deferral": {"maxTransferWait": "-3s"}}, "deferral.maxTransferWait", "-3 s"),
        ({"deferral": {"onTimeout": 3}}, "deferral.onTimeout", "auto"),
        ({"peerQuarantine": {"failures": 0}}, "peerQuarantine.failures", "from 1"),
        ({"peerQuarantine": {"window": "100000s"}}, "peerQuarantine.window", "100000 s"),
        ({"peerQuarantine": {"maxPeersPercent": 101}}, "peerQuarantine.maxPeersPercent", "from 0 to 100"),
        ({"telemetry": {"traceSampleRatio": 1.5}}, "telemetry.traceSampleRatio", "1.5"),
        ({"telemetry": {"traceSampleRatio": "NaN"}}, "telemetry.traceSampleRatio", "nan"),
    ],
)
@pytest.mark.parametrize("part", ["body", "observed"])
def test_bounds(part: str, section: dict[str, Any], field: str, words: str) -> None:
    """A value out of bounds is refused with its path in the manifest, the value and the way out."""
    with pytest.raises(RefusedError, match=words) as caught:
        decode_schedule(push({"hash": "h", part: section}), ALL)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "section", "field"),
    [
        ((), {"telemetry": {"traceSampleRatio": 1.0}}, "telemetry.traceSampleRatio"),
        (("telemetry",), {"kvLoadFailure": {}}, "kvLoadFailure"),
        (
            ("kv_load_failure.action",),
            {"kvLoadFailure": {"recomputeBudget": {"tokensPerSecond": 1}}},
            "kvLoadFailure.recomputeBudget.tokensPerSecond",
        ),
        (("kv_load_failure.action",), {"kvLoadFailure": {"action": 3}}, "kvLoadFailure.action"),
        (("kv_load",), {"kvLoadFailure": {"action": 2}}, "kvLoadFailure.action"),
    ],
)
def test_what_the_engine_does_not_do(fields: tuple[str, ...], section: dict[str, Any], field: str) -> None:
    """A field that no hook acts upon is refused, so that an ACK means in force."""
    with pytest.raises(RefusedError) as caught:
        decode_schedule(push(body(**section)), fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("inside", "field"),
    [
        (lambda push: push, "77"),
        (lambda push: push.schedule[0], "77"),
        (lambda push: push.schedule[0].body, "77"),
        (lambda push: push.schedule[1].observed.kv_load_failure, "kvLoadFailure.77"),
        (
            lambda push: push.schedule[0].body.kv_load_failure.recompute_budget,
            "kvLoadFailure.recomputeBudget.77",
        ),
        (lambda push: push.schedule[0].valid_for, "validFor.77"),
    ],
)
def test_unknown_fields_are_named(inside: Any, field: str) -> None:
    """A field of a newer agent, anywhere in the push, is refused by its path."""
    found = push({**body(**FULL), "validFor": "5s"}, {"hash": "h", "observed": FULL})
    inside(found).MergeFromString(b"\xe8\x04\x01")  # field 77, varint 1
    with pytest.raises(RefusedError, match="77") as caught:
        decode_schedule(Push.FromString(found.SerializeToString()), ALL)
    assert caught.value.field == field


def test_unknown_fields_of_orders_are_not_the_policys() -> None:
    """They are refused where the orders are."""
    found = push(body(**FULL), quarantines=[{"id": "o"}], drills=[{"id": "d"}])
    for order in (found.quarantines[0], found.drills[0]):
        order.MergeFromString(b"\xe8\x04\x01")
    assert len(decode_schedule(Push.FromString(found.SerializeToString()), ALL)) == 1


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (push({"hash": "h", "validFor": "5s"}), "ends? with"),
        (push({"hash": "h"}, {"hash": "h"}), "ends? with"),
        (push({"hash": "h", "validFor": "0s"}, {}), "more than 0"),
        (push({"body": {"telemetry": {}}}), "no hash"),
        (push({"hash": "x" * 129}), "129"),
        (push(*[{"hash": "h", "validFor": "5s"}] * 64, {}), "65 entries"),
    ],
)
def test_malformed_pushes(bad: Push, words: str) -> None:
    """What breaks the contract is refused in a sentence."""
    with pytest.raises(RefusedError, match=words):
        decode_schedule(bad, ALL)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    """Whatever parses as a push is decoded or refused."""
    try:
        found = Push.FromString(content)
    except Exception:  # noqa: BLE001  (what is no push never gets here)
        return
    with contextlib.suppress(RefusedError):
        assert len(decode_schedule(found, ALL)) == len(found.schedule)


@given(st.lists(st.floats(0.001, 1e6), max_size=6), st.floats(0, 1e7))
@settings(deadline=None)
def test_schedule_is_a_staircase(durations: list[float], later: float) -> None:
    """At any time the entry whose span holds it is in force, and the last one for good."""
    entries = [ScheduleEntry(Policy(hash=str(index)), span) for index, span in enumerate(durations)]
    schedule = PolicySchedule([*entries, ScheduleEntry(Policy(hash="last"))], 100.0)
    step = schedule.at(100.0 + later)
    passed, expected = 100.0, "last"
    for index, span in enumerate(durations):
        passed += span
        if 100.0 + later < passed:
            expected = str(index)
            break
    assert step.policy.hash == expected
    assert step.ends == (None if expected == "last" else passed)
