"""agentctl drain, against the real admin service."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1.snapshot_pb2 import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result
    from penstock.agent.model import Source

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

QUICK = ("--settle", "200ms", "--timeout", "1s")
SIDE = "10.0.0.7:5600"


def _report(leases: int = 0, waits: bool = False) -> Snapshot:
    now = time.time_ns()
    deferred = [{"peer": {"address": SIDE}, "count": 1, "oldest_start_time_unix_nano": now}] if waits else []
    held = {"count": leases, "blocks": 4, "oldest_start_time_unix_nano": now - 30 * 10**9} if leases else None
    facts = {"num_gpu_blocks": 128} | ({} if waits else {"side_channel": SIDE})
    return Snapshot(time_unix_nano=now, engine=facts, queue={}, leases=held, deferred=deferred)


@pytest.fixture
def prefill(harness: AdminHarness) -> Source:
    """Connect a prefill engine with a lease, and a decode engine that waits for it."""
    prefill = harness.source("0", server="prefill", role="prefill")
    harness.snapshot(prefill, _report(leases=1))
    harness.snapshot(harness.source("0", server="decode"), _report(waits=True))
    return prefill


def test_it_gives_up_and_says_what(harness: AdminHarness, agentctl: Agentctl, prefill: Source) -> None:
    """Who is waited for, and in the end what was given up."""
    assert harness
    assert prefill
    given_up = agentctl("drain", "prefill/0", *QUICK)
    state = "engine prefill/0 is not drained: 1 unread lease that decode/0 waits for, the oldest since 3"
    assert given_up.exit_code == 1
    assert given_up.stdout.startswith(state)
    assert len(given_up.stdout.splitlines()) == 1
    assert given_up.stderr.startswith(f"agentctl: gave up after 1s: {state}")
    document = json.loads(agentctl("drain", "prefill/0", *QUICK, "-o", "json").stdout)
    assert (document["engine"], document["drained"]) == ("prefill/0", False)
    (need,) = document["needs"]
    assert (need["what"], need["count"], need["whom"]) == ("unread lease", 1, "that decode/0 waits for")


def test_it_ends_once_the_lease_is_read(harness: AdminHarness, agentctl: Agentctl, prefill: Source) -> None:
    """The command returns as soon as nothing is needed for the time of --settle."""
    timer = threading.Timer(0.3, lambda: harness.snapshot(prefill, _report()))
    timer.start()
    done = agentctl("drain", "prefill/0", "--settle", "200ms", "--timeout", "1m")
    timer.join()
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "engine prefill/0 is drained"
    again = agentctl("drain", "prefill/0", *QUICK, "-o", "yaml")
    assert again.exit_code == 0
    assert "drained: true\n" in again.stdout


def test_a_moment_without_a_lease_is_not_enough(
    agentctl: Agentctl, prefill: Source, harness: AdminHarness
) -> None:
    """--settle longer than --timeout never ends well, and says why."""
    harness.snapshot(prefill, _report())
    short = agentctl("drain", "prefill/0", "--settle", "1m", "--timeout", "1s")
    assert short.exit_code == 1
    assert short.stderr == (
        "agentctl: gave up after 1s: engine prefill/0 is drained, but not for long enough yet (--settle)\n"
    )


def test_out_of_rotation_first(harness: AdminHarness, agentctl: Agentctl, prefill: Source) -> None:
    """The server is out before the wait, stays out for who ends it, and comes back if the wait is given up."""
    front_end = harness.source("", server="prefill", process="api")
    until = time.time_ns() + 60 * 10**9
    hooks = [{"name": "readiness", "installed": True}]
    harness.snapshot(front_end, Snapshot(hooks=hooks, out_of_rotation_until_unix_nano=until))
    timer = threading.Timer(1.2, lambda: harness.snapshot(front_end, Snapshot(hooks=hooks)))
    timer.start()
    given_up = agentctl("drain", "prefill/0", *QUICK, "--eject")
    timer.join()
    assert given_up.exit_code == 1
    first, *_, last = given_up.stdout.splitlines()
    assert first == "engine prefill/0 is out of rotation for 1m1s"
    assert last == "engine prefill/0 is back in rotation"
    harness.snapshot(prefill, _report())
    harness.snapshot(front_end, Snapshot(hooks=hooks, out_of_rotation_until_unix_nano=until))
    done = agentctl("drain", "prefill/0", *QUICK, "--eject")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "engine prefill/0 is drained")
    assert "out of rotation" in agentctl("get", "engines").stdout


def test_an_engine_that_is_not_known(agentctl: Agentctl, prefill: Source) -> None:
    """The sentence has what may have been meant."""
    assert prefill
    refused = agentctl("drain", "prefil/0", *QUICK)
    assert refused.exit_code == 1
    assert "there is no engine 'prefil/0'; did you mean prefill/0?" in refused.stderr
    of_server = agentctl("drain", "prefill", *QUICK)
    assert "'prefill' is a server; name one of its engines: prefill/0" in of_server.stderr
