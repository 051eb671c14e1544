"""agentctl get requests, against the real admin service."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import PEER, deferral_end, deferral_start, transfer_failure
from tests.support.agent.stories import closed, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_MINUTE = 60 * 10**9


@pytest.fixture
def filled(harness: AdminHarness) -> AdminHarness:
    """Three finished requests (successful, recomputed, failed) and two deferred ones."""
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
    """The newest first, with outcome, durations and state."""
    header, *lines = agentctl("get", "requests", "--since", "5m").stdout.splitlines()
    assert header.split() == [
        "AGE", "ENGINE", "REQUEST", "STATE", "DURATION", "WAIT", "TTFT", "MODE", "PEER", "RECOMPUTED", "FINISH",
    ]  # fmt: skip
    by_name = {line.split()[2]: line.split() for line in lines}
    again = ["60s", "0", "again", "recomputed", "60s", "-", "-", "handshake", PEER, "400", "stop"]
    assert by_name["again"] == again
    assert by_name["good"][3:] == ["ok", "-", "-", "-", "-", "-", "-", "stop"]
    assert by_name["bad"][3] == "failed"
    assert by_name["bad"][5:] == ["-", "-", "handshake", PEER, "-", "-"]
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
    # Of vLLM's own queue it knows nothing, and does not say that it is empty.
    quiet = agentctl("get", "requests", "--deferred", "--peer", "nobody:1").stderr
    assert quiet == (
        "no request is deferred; engine 0 does not report its queue: what waits there is not known\n"
    )
    wrong = agentctl("get", "requests", "--deferred", "--outcome", "failed")
    assert wrong.exit_code == 2


def test_what_is_missing_from_a_list_is_said(filled: AdminHarness, agentctl: Agentctl) -> None:
    """Truncation and unnamed deferred requests are notes in tables, fields in JSON."""
    assert "older requests are not shown" in agentctl("get", "requests", "--limit", "1").stderr
    row = {"reason": common.DEFERRAL_REASON_REMOTE_KV, "count": 5, "oldest_start_time_unix_nano": 1}
    filled.snapshot(filled.source("0"), Snapshot(time_unix_nano=time.time_ns(), deferred=[row]))
    assert "3 more are deferred whose ids" in agentctl("get", "requests", "--deferred").stderr
    document = json.loads(agentctl("get", "requests", "--deferred", "--limit", "1", "-o", "json").stdout)
    assert (document["truncated"], document["unnamedDeferred"]) == (True, 3)
    assert document["requests"][0]["requestId"] == "old"
    assert document["requests"][0]["deferred"] == "remote_kv"


def test_the_slowest_requests(filled: AdminHarness, agentctl: Agentctl) -> None:
    """The slowest first; durations are columns, in JSON seconds."""
    header, first, *_ = agentctl("get", "requests", "--slow").stdout.splitlines()
    assert header.split()[4:7] == ["DURATION", "WAIT", "TTFT"]
    assert first.split()[2] == "old"
    document = json.loads(agentctl("get", "requests", "--slow", "--sort", "duration", "-o", "json").stdout)
    by_name = {item["requestId"]: item for item in document["requests"]}
    assert by_name["again"]["duration"] == "60s"
    assert "wait" not in by_name["again"]
    assert float(by_name["old"]["wait"].rstrip("s")) >= 540
    wrong = agentctl("get", "requests", "--slow", "--deferred")
    assert (wrong.exit_code, "give --slow, --deferred or --outcome" in wrong.stderr) == (2, True)
    more = agentctl("get", "requests", "--slow", "--limit", "1").stderr
    assert more.startswith("more requests are not shown")


def test_the_end_of_a_deferral_says_how_long_it_took(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The wait is computed where the engine did not send it; without a start it is absent."""
    now, core = time.time_ns(), harness.source("0")
    harness.append(
        core,
        deferral_end("a", start_ns=now - 12 * 10**9, time_ns=now),
        deferral_end("b", start_ns=now - 12 * 10**9, time_ns=now, duration_nano=5 * 10**9),
        deferral_end("c", start_ns=0, time_ns=now),
    )
    lines = agentctl("get", "events", "--kind", "deferral_end").stdout.splitlines()[1:]
    said = [line.split("waited", 1)[1].strip() for line in lines]
    assert said == ["12s for remote_kv: ready", "5.0s for remote_kv: ready", "for remote_kv: ready"]
    events = json.loads(agentctl("get", "events", "-o", "json").stdout)["events"]
    durations = [item["event"]["deferralEnd"].get("duration") for item in events]
    assert durations == ["12s", "5s", None]
