"""The command, as a process: what it starts ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agent import wait_until

ROOT = Path(__file__).resolve().parents[2]


def children(pid: int) -> set[int]:
    """Return the processes that descend from *pid*."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(process.name)] = int(
                process.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found |= new
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(number):
    """With an agent and an OTLP server up, in the middle of a round."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "agent"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "round 2" in line:
                break
        started = children(process.pid)
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert "Interrupted" in rest
    assert len(started) >= 3
    wait_until(lambda: not [pid for pid in started if Path(f"/proc/{pid}").exists()], "all have ended")


def test_an_unknown_area_is_named():
    """With those that there are."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "engine"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no such area: engine; there are emit, agent, scrape, policy" in done.stderr
