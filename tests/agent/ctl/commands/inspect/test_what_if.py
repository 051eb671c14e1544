"""agentctl what-if, against the real admin service."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as common

from tests.support.agent.batches import PEER, deferral_end, event
from tests.support.agent.stories import SECOND, outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_POLICY = """\
apiVersion: penstock.dev/v1alpha1
kind: TransferPolicy
metadata: {name: decode-default}
spec:
  kvLoadFailure: {action: recompute}
  peerQuarantine: {failures: 2, window: 30s, duration: 10m, maxPeersPercent: 100}
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """Write a policy."""
    path = tmp_path / "policy.yaml"
    path.write_text(_POLICY)
    return str(path)


@pytest.fixture
def failing(harness: AdminHarness) -> AdminHarness:
    """Two engines, four failures each, two seconds apart."""
    now = time.time_ns() - 60 * SECOND
    for engine in ("0", "1"):
        core = harness.source(engine)
        for number in range(4):
            at = now + 2 * number * SECOND
            name = f"{engine}-{number}"
            harness.append(
                core,
                outcome(name, common.OUTCOME_FAILED, time_ns=at + SECOND, decided_by=common.DECIDED_BY_VLLM),
                deferral_end(name, start_ns=at, time_ns=at + SECOND),
            )
    return harness


def test_the_table_compares(failing: AdminHarness, agentctl: Agentctl, policy: str) -> None:
    """Totals, engines, quarantines, and what was assumed."""
    lines = agentctl("what-if", "-f", policy).stdout.splitlines()
    assert lines[0] == "replayed: decode-default"
    cells = {line[:30].strip(): line[30:].split() for line in lines}
    assert cells["remote loads"] == ["8", "8"]
    assert cells["failed"] == ["8", "0"]
    assert cells["recomputed"] == ["0", "8"]
    assert cells["tokens recomputed"] == ["0", "3200"]
    assert cells["not tried: peer quarantined"] == ["0", "4"]
    assert cells["waited for remote state"] == ["8.0s", "4.0s"]
    assert any(line.split()[:5] == ["0", "4", "0", "→", "4"] for line in lines)
    assert any(line.startswith(PEER) and "1 time" in line for line in lines)


def test_other_formats_have_all(failing: AdminHarness, agentctl: Agentctl, policy: str) -> None:
    """The wire's JSON, also with a window in which nothing is."""
    document = json.loads(agentctl("what-if", "-f", policy, "-o", "json").stdout)
    assert [engine["would"]["notTried"] for engine in document["engines"]] == [2, 2]
    assert "recomputed: 4" in agentctl("what-if", "-f", policy, "-o", "yaml").stdout
    nothing = agentctl("what-if", "-f", policy, "--since", "1s")
    assert nothing.stdout == ""
    assert "no remote load is recorded" in nothing.stderr


def test_without_a_file_the_present_policies_are_replayed(failing: AdminHarness, agentctl: Agentctl) -> None:
    """Here there are none."""
    assert agentctl("what-if").stdout.splitlines()[0] == "replayed: no policy"


def test_a_wrong_file_is_named_with_its_line(agentctl: Agentctl, tmp_path: Path) -> None:
    """As 'apply' names it."""
    path = tmp_path / "wrong.yaml"
    path.write_text(_POLICY + "  - x\n")
    result = agentctl("what-if", "-f", str(path))
    assert result.exit_code == 2
    assert f"{path}:" in result.stderr
    path.write_text(_POLICY.replace("recompute", "maybe"))
    result = agentctl("what-if", "-f", str(path))
    assert result.exit_code == 2
    assert f"{path}: policy 'decode-default': spec.kvLoadFailure.action" in result.stderr


def _computed(harness: AdminHarness, number: int, at: int) -> None:
    core = harness.source("0")
    for each in range(number):
        harness.append(
            core,
            event(
                "request_closed",
                f"computed-{each}",
                time_ns=at,
                prompt_tokens=100,
                first_token_time_unix_nano=at,
                gates={"own_prefill_nano": SECOND // 10},
            ),
        )


def _loaded(harness: AdminHarness, at: int) -> None:
    harness.append(
        harness.source("0"),
        deferral_end("r", start_ns=at, time_ns=at + 3 * SECOND),
        event(
            "request_closed",
            "r",
            time_ns=at + 4 * SECOND,
            peer={"address": PEER},
            prompt_tokens=100,
            external_cached_tokens=100,
        ),
    )


def test_reflexes_have_a_table(harness: AdminHarness, agentctl: Agentctl) -> None:
    """What each would have saved; what was not known is not shown as nothing."""
    now = time.time_ns() - 600 * SECOND
    _computed(harness, 5, now)
    _loaded(harness, now + SECOND)
    assert "REFLEX" not in agentctl("what-if").stdout
    lines = agentctl("what-if", "--reflexes").stdout.splitlines()
    header = next(line for line in lines if line.startswith("REFLEX")).split()
    rows = {
        line.split()[0]: dict(zip(header, line.split(), strict=True))
        for line in lines
        if len(line.split()) == 10
    }
    assert (
        rows["reflexes.startWait"] | {"ACTS": "1", "SAVED": "2.4s", "LOST": "-", "TOKENS": "100"}
        == rows["reflexes.startWait"]
    )
    assert rows["reflexes.slowPeer"]["NOT-KNOWN"] == "1"
    assert "reflexes.slowPeer: what loads from the peer take was not known 1 of 1 time" in lines
    assert "reflexes.recomputeStorm: no loss was recomputed, so nothing is known of it" in lines
    assert any(
        line.split()[-2:] == ["0", "1"] for line in lines if line.startswith("computed here by a reflex")
    )


def test_reflexes_without_a_price_say_so(harness: AdminHarness, agentctl: Agentctl) -> None:
    """An engine that loads every prompt has none."""
    _loaded(harness, time.time_ns() - 600 * SECOND)
    lines = agentctl("what-if", "--reflexes").stdout.splitlines()
    for name in ("startWait", "slowPeer"):
        assert f"reflexes.{name}: what computing takes on the engine was not known 1 of 1 time" in lines


def test_a_policy_that_observes_only_reports(
    harness: AdminHarness, agentctl: Agentctl, tmp_path: Path
) -> None:
    """What it would have done is counted; with --reflexes it acts."""
    now = time.time_ns() - 600 * SECOND
    _computed(harness, 5, now)
    _loaded(harness, now + SECOND)
    path = tmp_path / "policy.yaml"
    path.write_text(_POLICY.partition("spec:")[0] + "spec:\n  reflexes: {startWait: {factor: 2}}\n")
    seen = agentctl("what-if", "-f", str(path)).stdout.splitlines()
    assert "reflexes.startWait only reports: that is what it would have done" in seen
    assert not any(line.startswith("computed here by a reflex") for line in seen)
    acted = json.loads(agentctl("what-if", "-f", str(path), "--reflexes", "-o", "json").stdout)["engines"][0]
    assert [each["field"] for each in acted["reflexes"]] == [
        "reflexes.startWait",
        "reflexes.slowPeer",
        "reflexes.recomputeStorm",
    ]
    assert acted["would"]["byReflex"] == 1
