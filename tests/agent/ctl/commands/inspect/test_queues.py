"""Requests that wait or run now, as every command says it of the scheduler's own words; against the real admin service."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.model import EngineKey
from penstock.agent.stalls import Stall, StallKind
from penstock.proto.v1 import snapshot_pb2 as snapshots
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import PEER, deferral_start
from tests.support.agent.stories import closed, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

CAPACITY, REMOTE = snapshots.QUEUE_REASON_CAPACITY, snapshots.QUEUE_REASON_REMOTE_KV
SECOND = 10**9
_WHY = "nothing runs: 2 requests wait for KV blocks, 3 of 127 are free; leases hold 96 % of the cache"


def _snapshot(*requests: dict[str, Any], waiting: list[dict[str, Any]], running: int = 0) -> Snapshot:
    now = time.time_ns()
    return Snapshot(
        time_unix_nano=now,
        engine={"num_gpu_blocks": 128},
        progress={},
        leases={"count": 4, "blocks": 122, "oldest_start_time_unix_nano": now - 40 * SECOND},
        queue={
            "running": running,
            "waiting": waiting,
            "total_blocks": 127,
            "free_blocks": 3,
            "last_step_time_unix_nano": now - 14 * SECOND,
            "last_step_tokens": 512,
            "empty_steps": 700,
            "requests": requests,
        },
    )


@pytest.fixture
def starved(harness: AdminHarness) -> AdminHarness:
    """Connect a prefill engine whose cache is full of leases; two requests wait for blocks, of which no log knows."""
    now = time.time_ns()
    core = harness.source("0", role="prefill", labels={"role": "prefill"})
    rows = [
        {
            "request_id": f"cmpl-client-{n}-0-0a1b2c3{n}",
            "waiting": CAPACITY,
            "arrival_time_unix_nano": now - (12 - n) * SECOND,
            "prompt_tokens": 600,
        }
        for n in range(2)
    ]
    waiting = [{"reason": CAPACITY, "count": 2, "oldest_start_time_unix_nano": now - 12 * SECOND}]
    harness.snapshot(core, _snapshot(*rows, waiting=waiting))
    since = time.time() - 12
    harness.stalls = {EngineKey("", "0"): (Stall(StallKind.NO_CAPACITY, 2, since, _WHY),)}
    return harness


def test_an_engine_that_accepts_requests_and_runs_none(starved: AdminHarness, agentctl: Agentctl) -> None:
    """Every command knows the two that wait, and why."""
    assert starved
    listed = agentctl("get", "requests", "--queued").stdout.splitlines()
    assert listed[0].split() == ["AGE", "ENGINE", "REQUEST", "STATE", "PEER", "BLOCKS", "PROMPT", "COMPUTED"]
    first = listed[1].split()
    assert first[2:] == ["cmpl-client-0-0-0a1b2c30", "waits", "for", "capacity", "-", "0", "600", "0"]
    quiet = agentctl("get", "requests", "--deferred")
    assert quiet.stderr == "no request is deferred; 2 wait for the scheduler (2 capacity)\n"
    assert "waits for capacity" in agentctl("get", "requests").stdout
    said = agentctl("explain", "client-1").stdout
    assert said.startswith(
        "Request cmpl-client-1-0-0a1b2c31 on engine 0 waits for KV blocks now (it arrived 1"
    )
    assert said.endswith(f"): {_WHY}; the log has nothing of it yet.\n")
    verdict = agentctl("diagnose")
    assert verdict.exit_code == 1
    assert f"engine 0: {_WHY[:60]}" in verdict.stdout.replace("\n    ", " ")
    assert "no_capacity, certain" in verdict.stdout.replace("\n    ", " ")
    described = re.sub(r"\d+s ago", "SECONDS ago", agentctl("describe", "engine", "0").stdout)
    waiting = "2 waiting for capacity, oldest since SECONDS ago"
    assert f"Scheduler:\n  0 requests running\n  {waiting}\n" in described
    assert "3 of 127 KV blocks free, 97.6% of the cache in use\n" in described
    assert "last step with a token SECONDS ago: 512 tokens, 700 steps without one since\n" in described
    wide = agentctl("get", "engines", "-o", "wide").stdout
    assert "2 capacity" in wide
    assert "3 of 127" in wide
    assert "no_capacity" in agentctl("doctor").stdout


def test_what_the_log_knows_and_what_the_scheduler_has(harness: AdminHarness, agentctl: Agentctl) -> None:
    """An ended request is not queued although a snapshot that is older has it; a deferred one is told with its blocks."""
    now = time.time_ns()
    core = harness.source("0")
    peer = {"address": PEER}
    names = ("over", "waits", "again", "new")
    states = (0, REMOTE, 0, 0)
    rows = [
        {
            "request_id": name,
            "waiting": state,
            "arrival_time_unix_nano": now - 30 * SECOND + place,
            "blocks": 7,
            "computed_tokens": 112,
            "peer": peer if state else None,
        }
        for place, (name, state) in enumerate(zip(names, states, strict=True))
    ]
    harness.snapshot(
        core,
        _snapshot(
            *rows, waiting=[{"reason": REMOTE, "count": 1}, {"reason": CAPACITY, "count": 5}], running=3
        ),
    )
    harness.append(core, closed("over", time_ns=now, arrival_time_unix_nano=now - SECOND))
    harness.append(core, deferral_start("waits", time_ns=now), outcome("again", time_ns=now))
    listed = json.loads(agentctl("get", "requests", "-o", "json").stdout)["requests"]
    queued = {each["requestId"]: each.get("queued") for each in listed}
    assert queued["over"] is None
    assert queued["waits"]["waiting"] == "remote_kv"
    assert queued["again"]["blocks"] == queued["new"]["blocks"] == 7
    by_name = {
        line.split()[2]: line.split()[3] for line in agentctl("get", "requests").stdout.splitlines()[1:]
    }
    assert by_name == {"over": "ok", "waits": "waits", "again": "recomputed", "new": "runs"}
    result = agentctl("get", "requests", "--queued")
    assert [line.split()[2] for line in result.stdout.splitlines()[1:]] == list(names)
    assert result.stderr == (
        "5 more wait or run that engines count and do not name: 3 run, waiting: 5 capacity, 1 remote kv in all\n"
    )
    only = agentctl("get", "requests", "--queued", "--peer", PEER).stdout.splitlines()
    assert [line.split()[2] for line in only[1:]] == ["waits"]
    sentences = agentctl("explain", "waits").stdout.splitlines()
    assert sentences[-1].startswith("Request waits on decode engine 0 waits for remote KV from")
    assert "runs now" not in agentctl("explain", "over").stdout
    assert re.search(r"runs now \(it arrived \d+ s ago, 7 KV blocks\)", agentctl("explain", "new").stdout)


def test_an_engine_that_does_not_report_its_queue(harness: AdminHarness, agentctl: Agentctl) -> None:
    """It is not known, and not none; one that is away has no queue."""
    core = harness.source("0")
    harness.snapshot(core, Snapshot(time_unix_nano=time.time_ns(), engine={"num_gpu_blocks": 10}))
    unknown = "engine 0 does not report its queue: what waits there is not known\n"
    result = agentctl("get", "requests", "--queued")
    assert (result.stdout, result.stderr.splitlines()[-1] + "\n") == ("", unknown)
    assert agentctl("get", "requests", "--deferred").stderr == f"no request is deferred; {unknown}"
    assert "Scheduler:\n  not reported" in agentctl("describe", "engine", "0").stdout
    harness.disconnect(core)
    assert agentctl("get", "requests", "--queued").stderr == "no request waits or runs in a scheduler\n"
    assert "not reported: what runs" not in agentctl("describe", "engine", "0").stdout


@pytest.mark.parametrize("other", [("--deferred",), ("--slow",), ("--outcome", "failed")])
def test_lists_that_exclude_each_other(agentctl: Agentctl, other: tuple[str, ...]) -> None:
    """A usage error, before anything is asked."""
    assert agentctl("get", "requests", "--queued", *other).exit_code == 2


def test_a_paused_scheduler(harness: AdminHarness, agentctl: Agentctl) -> None:
    """By vLLM, not by ``agentctl pause``."""
    core = harness.source("0")
    snapshot = _snapshot(waiting=[{"reason": snapshots.QUEUE_REASON_PAUSED, "count": 1}], running=1)
    snapshot.queue.pause = snapshots.SCHEDULER_PAUSE_NEW
    snapshot.queue.pause_start_time_unix_nano = time.time_ns() - 20 * SECOND
    harness.snapshot(core, snapshot)
    assert "paused for new requests by vLLM since 2" in agentctl("describe", "engine", "0").stdout
