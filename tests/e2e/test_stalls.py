"""What does not happen on engines: waits that never start, a router that sends no parameters, a worker that stands still; and stacks."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from penstock.proto.v1 import admin_pb2 as admin

from demo.common.client import complete
from demo.common.steps import until
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kv.bench import Bench

# Servers of their own: a load that never starts keeps its blocks for ever, whatever becomes of the request.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [replace(CPU_DEFAULTS, name="stalls")], indirect=True, ids=["cpu"]),
]


def _stalls(kv: Bench, server: str) -> dict[str, admin.Stall]:
    """Return the stalls of a server's engine, by kind."""
    engines = kv.admin.ListEngines(admin.ListEnginesRequest()).engines
    return {stall.kind: stall for engine in engines if engine.key.server == server for stall in engine.stalls}


@contextmanager
def _left_open(url: str, prompt: str, **params: object) -> Iterator[None]:
    """Send a request that hangs; the client hangs up at the end."""
    server = urlsplit(url)
    body = {"prompt": prompt, "max_tokens": 4, "kv_transfer_params": params}
    with closing(HTTPConnection(server.hostname or "", server.port)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        yield


def test_good_traffic_has_no_stall(kv: Bench) -> None:
    """Loads that are made, in both engines."""
    for _ in range(3):
        request = kv.prefilled()
        assert kv.decode(request).completion == request.text
        kv.closed(request)
    assert not _stalls(kv, "decode")
    assert not _stalls(kv, "prefill")


def test_a_router_that_sends_no_parameters(kv: Bench) -> None:
    """Doctor counts the requests, and the metric has the engine."""
    numbers = itertools.count()

    def seen() -> bool:
        """Send some more: nine of ten must have none, beside all loads of the last minutes."""
        for number in itertools.islice(numbers, 45):
            complete(kv.stack.decode.url, f"{number} short", max_tokens=1)
        return "no_transfer_params" in _stalls(kv, "decode")

    until(seen, "No stall of a router")
    said = kv.agent.ctl("doctor").output
    assert re.search(r"wrong +no_transfer_parameters: .*\d+ of \d+ requests", said)
    # The snapshot that showed the stall need not have all of them.
    until(lambda: kv.value("penstock_stalls", kind="no_transfer_params") >= 40, "Not all are counted")


def test_stacks(kv: Bench) -> None:
    """The EngineCore's threads, with names and lines; the question is in the audit log."""
    said = kv.ctl("debug", "stacks", "decode/0", "--reason", "a look")
    assert "engine-core (pid " in said
    assert re.search(r"MainThread:\n.*\(\w+\.py:\d+\)", said)
    assert "run_busy_loop" in said
    assert "penstock-policy:" in said
    assert "debug-stacks" in kv.ctl("get", "audit")


@pytest.mark.long
def test_a_wait_that_never_starts(kv: Bench) -> None:
    """VLLM parks a request whose parameters lack the peer's address, and never loads for it."""
    request = kv.prefilled()
    params = {name: value for name, value in request.params.items() if name != "remote_host"}
    with _left_open(kv.stack.decode.url, request.prompt, **params):
        until(lambda: "load_not_started" in _stalls(kv, "decode"), "No stall of a load")
        stall = _stalls(kv, "decode")["load_not_started"]
        assert stall.count == 1
        assert "1 request waits for KV from" in stall.sentence
        assert "get requests --deferred; " in kv.agent.ctl("doctor").output
        assert "load_not_started (certain)" in kv.ctl("describe", "engine", "decode/0")
    until(lambda: "load_not_started" not in _stalls(kv, "decode"), "The stall does not end")


def test_a_worker_that_stands_still(kv: Bench) -> None:
    """It is named while its EngineCore reports; the stacks of that show what it waits for. Last: the engine may not survive it."""
    engines = kv.admin.ListEngines(admin.ListEnginesRequest()).engines
    (pid,) = (
        source.hello.pid
        for engine in engines
        if engine.key.server == "prefill"
        for source in engine.sources
        if source.hello.process == "worker"
    )
    stop(pid)
    try:
        with _left_open(kv.stack.prefill.url, "a request that hangs"):
            until(lambda: "worker_silent" in _stalls(kv, "prefill"), "No stall of a worker")
            assert "worker 0 has reported nothing" in _stalls(kv, "prefill")["worker_silent"].sentence
            assert "MainThread" in kv.ctl("debug", "stacks", "prefill/0")
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: "worker_silent" not in _stalls(kv, "prefill"), "The stall does not end")
