"""agentctl get requests, against the real admin service."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import PEER, deferral_start, transfer_failure
from tests.support.agent.stories import closed, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_MINUTE = 60 * 10**9


@pytest.fixture
def filled(harness: AdminHarness) -> AdminHarness:
    """Three requests that ended (one well, one recomputed, one failed) and two that wait."""
    now = time.time_ns()
    core = harness.source("0")
    harness.append(
        core, transfer_failure("bad", time_ns=now), outcome("bad", common.OUTCOME_FAILED, time_ns=now)
    )
    harness.append(
        core,
        outcome("again", time_ns=now),
        closed("again", time_ns=now, arrival_time_unix_nano=now - _MINUTE),
    )
    harness.append(core, closed("good", time_ns=now, arrival_time_unix_nano=now))
    harness.append(core, deferral_start("new", time_ns=now), deferral_start("old", time_ns=now - 9 * _MINUTE))
    return harness


def test_the_table_says_what_became_of_each(filled: AdminHarness, agentctl: Agentctl) -> None:
    """The newest first; what it cost, how it finished, whether it waits."""
    header, *lines = agentctl("get", "requests", "--since", "5m").stdout.splitlines()
    assert header.split() == [
        "AGE", "ENGINE", "REQUEST", "STATE", "MODE", "PEER", "RECOMPUTED", "FINISH",
    ]  # fmt: skip
    by_name = {line.split()[2]: line.split() for line in lines}
    assert by_name["again"] == ["60s", "0", "again", "recomputed", "handshake", PEER, "400", "stop"]
    assert by_name["good"][3:] == ["ok", "-", "-", "-", "stop"]
    assert by_name["bad"][3:] == ["failed", "handshake", PEER, "-", "-"]
    assert by_name["new"][3:6] == ["waits", "for", "remote_kv"]
    assert "TRACE" in agentctl("get", "request", "-o", "wide").stdout


def test_filters_are_the_issues_own_examples(filled: AdminHarness, agentctl: Agentctl) -> None:
    """``--deferred --sort age`` and ``--outcome … --peer … --since 1h``."""

    def names(*arguments: str) -> list[str]:
        return [line.split()[2] for line in agentctl("get", "requests", *arguments).stdout.splitlines()[1:]]

    assert names("--deferred", "--sort", "age") == ["old", "new"]
    assert names("--deferred", "--since", "5m") == ["new"]
    assert names("--outcome", "recomputed", "--peer", PEER, "--since", "1h") == ["again"]
    assert names("--outcome", "failed", "-l", "role=decode") == ["bad"]
    nothing = agentctl("get", "requests", "--outcome", "aborted")
    assert (nothing.exit_code, nothing.stderr) == (0, "no matching request in the log\n")
    wrong = agentctl("get", "requests", "--deferred", "--outcome", "failed")
    assert wrong.exit_code == 2


def test_what_is_missing_from_a_list_is_said(filled: AdminHarness, agentctl: Agentctl) -> None:
    """That it was cut, and that more wait than it names; in JSON both are fields."""
    assert "older requests are not shown" in agentctl("get", "requests", "--limit", "1").stderr
    row = {"reason": common.DEFERRAL_REASON_REMOTE_KV, "count": 5, "oldest_start_time_unix_nano": 1}
    filled.snapshot(filled.source("0"), Snapshot(time_unix_nano=time.time_ns(), deferred=[row]))
    assert "3 more are deferred whose ids" in agentctl("get", "requests", "--deferred").stderr
    document = json.loads(agentctl("get", "requests", "--deferred", "--limit", "1", "-o", "json").stdout)
    assert (document["truncated"], document["unnamedDeferred"]) == (True, 3)
    assert document["requests"][0]["requestId"] == "old"
    assert document["requests"][0]["deferred"] == "remote_kv"
