"""The flags of set-policy that set a field of the spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.ctl.commands.policies.fields import FIELDS, unset_fields
from penstock.agent.policy.distribution.push_encoding import body_of
from penstock.agent.views.field_diff import flat_values
from penstock.proto.v1.policy_pb2 import PolicyBody

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_EVERYTHING = (
    *("--kv-load-failure", "auto", "--kv-max-recompute-tokens", "4096"),
    *("--kv-recompute-budget", "20000", "--kv-over-budget", "fail"),
    *("--ec-load-failure", "auto", "--ec-max-recompute-items", "8"),
    *(
        "--deferral-max-start-wait",
        "30s",
        "--deferral-max-transfer-wait",
        "5s",
        "--deferral-on-timeout",
        "fail",
    ),
    *("--ec-load-failure", "auto", "--ec-max-recompute-items", "8"),
    *("--trace-sample-ratio", "0.25", "--failure-log-interval", "5s"),
    *("--integrity-sample-ratio", "0.01", "--integrity-action", "enforce"),
    *("--reflexes-per-minute", "30", "--reflex-start-wait", "enforce"),
    *("--reflex-start-wait-factor", "1.5", "--reflex-start-wait-min", "250ms"),
    *("--reflex-slow-peer", "observe", "--reflex-slow-peer-factor", "3"),
    *("--reflex-recompute-storm", "observe", "--reflex-recompute-storm-queue-wait", "2s"),
    *("--quarantine-failures", "5", "--quarantine-window", "30s"),
    *("--quarantine-duration", "60s", "--quarantine-max-peers-percent", "50"),
)


def _spec(harness: AdminHarness) -> dict[str, Any]:
    spec: dict[str, Any] = harness.store.policies()[0].manifest.document()["spec"]
    return spec


def _paths(descriptor: Any, prefix: str = "") -> set[str]:
    """Return the paths of the leaf fields of a message."""
    found: set[str] = set()
    for field in descriptor.fields:
        inner = field.message_type
        if inner is None or inner.full_name == "google.protobuf.Duration":
            found.add(prefix + field.json_name)
        else:
            found |= _paths(inner, f"{prefix}{field.json_name}.")
    return found


def test_every_field_has_a_flag() -> None:
    """Flags and fields of the wire are the same set."""
    assert {field.path for field in FIELDS} == _paths(PolicyBody.DESCRIPTOR)
    assert len({field.argument for field in FIELDS}) == len(FIELDS)


def test_all_flags_at_once(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Each value is at its path, in the manifest's form, and reaches the wire."""
    result = agentctl("set-policy", "p", "--all", *_EVERYTHING)
    assert result.exit_code == 0, result.stderr
    assert _spec(harness) == {
        "kvLoadFailure": {
            "action": "auto",
            "maxRecomputeTokens": 4096,
            "recomputeBudget": {"tokensPerSecond": 20000},
            "overBudget": "fail",
        },
        "deferral": {"maxStartWait": "30s", "maxTransferWait": "5s", "onTimeout": "fail"},
        "ecLoadFailure": {"action": "auto", "maxRecomputeItems": 8},
        "peerQuarantine": {"failures": 5, "window": "30s", "duration": "1m", "maxPeersPercent": 50},
        "telemetry": {"traceSampleRatio": 0.25, "failureLogInterval": "5s"},
        "integrity": {"sampleRatio": 0.01, "action": "enforce"},
        "reflexes": {
            "perMinute": 30,
            "startWait": {"action": "enforce", "factor": 1.5, "minWait": "250ms"},
            "slowPeer": {"action": "observe", "factor": 3.0},
            "recomputeStorm": {"action": "observe", "queueWait": "2s"},
        },
    }
    body = body_of(harness.store.policies()[0].manifest.leaves)
    assert body.kv_load_failure.recompute_budget.tokens_per_second == 20000
    assert body.deferral.max_transfer_wait.ToSeconds() == 5
    assert body.peer_quarantine.duration.ToSeconds() == 60
    assert body.reflexes.start_wait.min_wait.ToMilliseconds() == 250


def test_one_flag_changes_one_field(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The other fields of its section stay."""
    agentctl("set-policy", "p", "--all", *_EVERYTHING)
    before = _spec(harness)
    assert agentctl("set-policy", "p", "--all", "--kv-recompute-budget", "0").exit_code == 0
    before["kvLoadFailure"]["recomputeBudget"]["tokensPerSecond"] = 0
    assert _spec(harness) == before


@pytest.mark.parametrize(
    ("flag", "value", "sentence"),
    [
        (
            "--kv-max-recompute-tokens",
            "-1",
            "spec.kvLoadFailure.maxRecomputeTokens is -1; use a whole number from 0",
        ),
        (
            "--kv-recompute-budget",
            "-1",
            "spec.kvLoadFailure.recomputeBudget.tokensPerSecond is -1; use a whole",
        ),
        (
            "--ec-max-recompute-items",
            "1000001",
            "spec.ecLoadFailure.maxRecomputeItems is 1000001; use a whole number from 0 to 1000000",
        ),
        ("--kv-over-budget", "auto", "'auto' is not one of 'recompute', 'fail'"),
        (
            "--deferral-max-transfer-wait",
            "2h",
            "spec.deferral.maxTransferWait is '2h'; use a duration from 1ms to 1h",
        ),
        (
            "--deferral-max-start-wait",
            "soon",
            "spec.deferral.maxStartWait is 'soon'; use a duration from 1ms to 1h",
        ),
        (
            "--quarantine-failures",
            "0",
            "spec.peerQuarantine.failures is 0; use a whole number from 1 to 1000",
        ),
        ("--quarantine-window", "0s", "spec.peerQuarantine.window is '0s'; use a duration from 1s to 24h"),
        (
            "--quarantine-max-peers-percent",
            "101",
            "spec.peerQuarantine.maxPeersPercent is 101; use a whole number",
        ),
    ],
)
def test_a_value_out_of_bounds_is_refused(agentctl: Agentctl, flag: str, value: str, sentence: str) -> None:
    """The manifest's error has path, value and bounds; exit code 2."""
    result = agentctl("set-policy", "p", "--all", flag, value)
    assert (result.exit_code, sentence in result.stderr) == (2, True), result.stderr


def test_what_an_engine_does_not_know_is_warned_of_and_refused_by_it(
    harness: AdminHarness, agentctl: Agentctl
) -> None:
    """The command warns before the change, and prints the engine's refusal after it."""
    harness.engine(
        "0",
        supported=("kv_load_failure",),
        refuse=lambda push: "no quarantine here" if push.schedule else "",
    )
    result = agentctl("set-policy", "p", "--all", "--quarantine-failures", "3", "--wait")
    assert result.exit_code == 1
    assert "engine 0 does not support spec.peerQuarantine and will refuse the policy" in result.stderr
    assert "0 refused it (kvLoadFailure.action: no quarantine here)" in result.stderr


def test_a_field_that_waits_for_auto_is_shown(harness: AdminHarness, agentctl: Agentctl) -> None:
    """A threshold without auto has no effect, and yields a warning."""
    harness.engine("0")
    result = agentctl("set-policy", "p", "--all", "--kv-max-recompute-tokens", "100")
    assert result.stderr == (
        "warning: engine 0: spec.kvLoadFailure.maxRecomputeTokens has no effect while the action is vLLM's own; "
        "set kvLoadFailure.action to auto\n"
    )
    result = agentctl("set-policy", "p", "--all", "--kv-load-failure", "recompute")
    assert "has no effect while the action is recompute" in result.stderr
    assert agentctl("set-policy", "p", "--all", "--kv-load-failure", "auto").stderr == ""
    result = agentctl("set-policy", "q", "--all", "--ec-max-recompute-items", "8")
    assert result.stderr == (
        "warning: engine 0: spec.ecLoadFailure.maxRecomputeItems has no effect while the action is "
        "the connector's own; set ecLoadFailure.action to auto\n"
    )
    assert agentctl("set-policy", "q", "--all", "--ec-load-failure", "auto").stderr == ""


def test_a_field_can_be_taken_out_again(harness: AdminHarness, agentctl: Agentctl) -> None:
    """``--unset`` removes a field or a section, and sections left empty; an absent one is an error."""
    assert agentctl("set-policy", "p", "--all", *_EVERYTHING, "--ttl", "1h").exit_code == 0
    unset = (
        "kvLoadFailure.recomputeBudget.tokensPerSecond",
        "spec.deferral",
        "expiresAt",
        "telemetry",
        "integrity",
        "reflexes",
        "ecLoadFailure",
    )
    result = agentctl(
        "set-policy",
        "p",
        "--all",
        "--kv-load-failure",
        "recompute",
        *(word for path in unset for word in ("--unset", path)),
    )
    assert result.exit_code == 0, result.stderr
    assert _spec(harness) == {
        "kvLoadFailure": {"action": "recompute", "maxRecomputeTokens": 4096, "overBudget": "fail"},
        "peerQuarantine": {"failures": 5, "window": "30s", "duration": "1m", "maxPeersPercent": 50},
    }
    for path in ("deferral", "kvLoadFailure.action.x", "nonsense", ""):
        wrong = agentctl("set-policy", "p", "--all", "--unset", path)
        assert wrong.exit_code == 2
        assert f"--unset {path} is not set; set fields: kvLoadFailure.action, " in wrong.stderr


_SPECS = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=8,
).filter(lambda spec: isinstance(spec, dict))


@given(_SPECS, st.data())
def test_what_is_taken_out_is_gone_and_nothing_else(spec: dict[str, Any], data: st.DataObject) -> None:
    """For any set of fields."""
    before = dict(flat_values(spec))
    path = data.draw(st.sampled_from(sorted(before)))
    unset_fields(spec, [path])
    del before[path]
    assert dict(flat_values(spec)) == before
