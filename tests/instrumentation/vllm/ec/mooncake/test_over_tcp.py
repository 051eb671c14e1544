"""ECMooncakeConnector in two processes, over Mooncake's own engine and TCP; it needs ``make setup-connectors``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c

from demo.servers import LOOPBACK
from tests.support.ec.mooncake import NBYTES, new_port
from tests.support.kv.extra_connectors import environment, needs_extra_connectors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_extra_connectors
SECONDS = 180.0


def start(*args: str) -> subprocess.Popen[str]:
    """Start one side."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.ec.mooncake_process", *args],
        env={**os.environ, **environment()},
        stdout=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a side's end; return what it says."""
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def run(directory: Path, action: str, *, loses: bool) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Run both sides; return what consumer and producer say, and the consumer's port."""
    port, other = new_port(), new_port()
    for name in ("consumer", "producer"):
        (directory / name).mkdir()
    consumer = start("consumer", str(directory / "consumer"), str(port), action, str(int(loses)))
    try:
        assert consumer.stdout is not None
        # vLLM writes to the standard output, too.
        assert any(line.strip() == "ready" for line in consumer.stdout)
        sent = result(start("producer", str(directory / "producer"), str(other), str(port)))
        return result(consumer), sent, port
    finally:
        consumer.kill()
        consumer.wait()


def test_a_push(tmp_path: Path) -> None:
    """The item moves over TCP; both sides report it with bytes, the producer with the consumer's address."""
    received, sent, port = run(tmp_path, "", loses=False)
    assert (received["right"], received["encoded"]) == (True, [])
    assert sent["transfers"] == [[f"{LOOPBACK}:{port}", NBYTES, c.TRANSFER_RESULT_OK]]
    assert [each[1:] for each in received["transfers"]] == [[NBYTES, c.TRANSFER_RESULT_OK]]
    assert not received["failures"]
    assert not sent["failures"]


@pytest.mark.parametrize("action", ["", "recompute", "fail"])
def test_a_load_that_fails(action: str, tmp_path: Path) -> None:
    """The pushed item is lost before its load: by policy."""
    received, _, _ = run(tmp_path, action, loses=True)
    recomputed = action == "recompute"
    assert received["right"] is recomputed
    assert received["encoded"] == (["a"] if recomputed else [])
    outcome = c.OUTCOME_RECOMPUTED if recomputed else c.OUTCOME_FAILED
    assert received["outcomes"] == [[outcome, c.FAILURE_MODE_LOAD]]
    assert received["failures"] == [[c.FAILURE_MODE_LOAD, "a"]]
    assert ("mode load" in (received["error"] or "")) is (action == "fail")
