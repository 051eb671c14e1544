"""A prefill server is taken away: with and without waiting until its KV is read."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from demo.common.client import complete, fetch
from demo.common.steps import until
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.peers import Spare, stopped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.common.client import Answer
    from demo.stack import Stack
    from tests.support.kv.bench import Bench, Prefilled

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]

# Requests that are prefilled and not read when the server has to go.
UNREAD = 3


@pytest.fixture
def leaving(stack: Stack) -> Iterator[Spare]:
    """Give a second prefill server that is taken away."""
    spare = Spare(stack, "leaving")
    yield spare
    spare.stop()


@contextmanager
def draining(kv: Bench, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run what the container's preStop runs, beside the body."""
    command = [sys.executable, "-m", "penstock.instrumentation.drain", "--engine", "leaving"]
    with subprocess.Popen(
        [*command, "--url", f"http://{kv.agent.http}", *options], stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def _unread(kv: Bench, leaving: Spare) -> list[Prefilled]:
    prefilled = [kv.prefilled(server=leaving.server()) for _ in range(UNREAD)]
    until(
        lambda: f"{UNREAD} unread leases" in _drained(kv).text,
        lambda: f"The agent does not know the leases: {_drained(kv)}",
    )
    return prefilled


def _drained(kv: Bench) -> Answer:
    return fetch(f"http://{kv.agent.http}/drained?engine=leaving/0", timeout=10)


def _harmed(kv: Bench, requests: list[Prefilled]) -> int:
    """Have decode answer all *requests* at once; return how many of them were recomputed or failed."""
    with ThreadPoolExecutor(len(requests)) as clients:
        answers = list(clients.map(kv.decode, requests))
    for request in requests:
        kv.closed(request)
    harmed = [bool(kv.events("load_outcome", request.name)) for request in requests]
    for request, answer, bad in zip(requests, answers, harmed, strict=True):
        assert bad or answer.completion == request.text
    return sum(harmed)


def test_scale_in(kv: Bench, leaving: Spare) -> None:
    """Without waiting each answer loses its KV; with the hook none does, and the server goes as soon as all is read."""
    requests = _unread(kv, leaving)
    leaving.stop()
    assert _harmed(kv, requests) == UNREAD

    requests = _unread(kv, leaving)
    with draining(kv, "--timeout", "60s", "--settle", "2s") as hook:
        assert hook.stdout is not None
        waits = hook.stdout.readline()
        assert f"engine leaving/0 is not drained: {UNREAD} unread leases" in waits
        assert _harmed(kv, requests) == 0
        assert hook.wait(60) == 0
        assert hook.stdout.read().splitlines()[-1].startswith("drained after ")
    leaving.stop()
    until(
        lambda: (_drained(kv).status, _drained(kv).text) == (200, "engine leaving/0 is drained\n"),
        "A server that has ended is not called drained",
    )


def _given_up(kv: Bench) -> str:
    """Run the hook for two seconds; return its last line."""
    with draining(kv, "--timeout", "2s") as hook:
        assert hook.wait(60) == 1
        assert hook.stdout is not None
        return str(hook.stdout.read().splitlines()[-1])


def test_nobody_reads(kv: Bench, leaving: Spare) -> None:
    """With decode stopped the hook gives up, says what others still need, and agentctl says the same."""
    (request, *_) = _unread(kv, leaving)
    with stopped(kv.stack.decode):
        # On a busy machine a scheduler may report late: what it holds is not known then, and both say that.
        hooked = f"gave up after 2 s: engine leaving/0 is not drained: {UNREAD} unread leases "
        until(lambda: _given_up(kv).startswith(hooked), "The hook does not say who needs the engine")
        asked = f"gave up after 1s: engine leaving/0 is not drained: {UNREAD} unread leases"
        until(
            lambda: asked in kv.agent.ctl("drain", "leaving/0", "--timeout", "1s").output,
            "agentctl does not say who needs the engine",
        )
    assert kv.decode(request).completion == request.text


def test_out_of_rotation(kv: Bench, leaving: Spare) -> None:
    """The readiness answers 503 while the order lasts, and nothing else does; it ends by its command, and by itself."""
    server = leaving.server()
    ready, alive = f"{server.url}/health?penstock=ready", f"{server.url}/health"
    assert fetch(ready).status == 200
    until(lambda: "leaving/0" in kv.ctl("get", "engines"), "leaving/0 is not known")
    said = kv.ctl("eject", "leaving/0", "--for", "1m", "--reason", "a test", "--timeout", "60s")
    assert said == "engine leaving/0 is out of rotation for 1m"
    refused = fetch(ready)
    assert (refused.status, refused.body["ready"]) == (503, False)
    assert "out of rotation by order" in refused.body["reason"]
    assert fetch(alive).status == 200
    assert complete(server.url, "Requests are served all the same.", max_tokens=1).status == 200
    assert kv.agent.metrics().value("penstock_server_out_of_rotation", server="leaving", engine="") == 1
    assert "Out of rotation: " in kv.ctl("describe", "engine", "leaving/0")
    assert "engine leaving/0 is out of rotation by order of" in kv.agent.ctl("diagnose").output
    kv.event("rotation_changed", out=True)
    assert kv.ctl("eject", "off", "leaving/0", "--timeout", "60s") == "engine leaving/0 is back in rotation"
    assert fetch(ready).status == 200
    kv.event("rotation_changed", out=False)
    kv.ctl("eject", "leaving/0", "--for", "2s", "--timeout", "60s")
    until(lambda: fetch(ready).status == 200, "The order does not end by itself")


@pytest.mark.long
def test_vllms_own_timeout(kv: Bench, stack: Stack) -> None:
    """With --shutdown-timeout vLLM itself stays until its leases are read; it accepts no request meanwhile."""
    patient = Spare(stack, "leaving", "--shutdown-timeout", "40")
    try:
        requests = _unread(kv, patient)
        server = patient.server()
        with ThreadPoolExecutor(1) as ending:
            ended = ending.submit(server.child.stop, 60.0)
            until(
                lambda: "start mode=drain" in server.child.log.read_text(errors="replace"),
                "The engine does not begin to end",
            )
            assert _harmed(kv, requests) == 0
            assert ended.result() == 0
    finally:
        patient.stop()
