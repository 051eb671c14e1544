"""``make demo-fleet`` from its start to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demo.common.kube_api_server import missing_server

_ROOT = Path(__file__).parents[3]


@pytest.mark.long
@pytest.mark.parametrize("source", ["kubernetes", "nats"])
def test_the_demo_of_a_fleet(source: str) -> None:
    """It shows one change, an agent that hangs, and a roll-out that aborts itself; nothing is left running."""
    if source == "kubernetes" and (missing := missing_server()):
        pytest.skip(missing)
    ran = subprocess.run(
        [sys.executable, "-m", "demo.fleet", "--source", source],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ("kubectl wait --for=condition=Programmed" in ran.stdout) == (source == "kubernetes")
    assert "2 of 3 agents answered; not: decode-2" in ran.stdout
    assert "aborted at 20 %: failed>2x" in ran.stdout
    assert "6 engines had it, and 18 never" in " ".join(ran.stdout.split())
    assert ran.stdout.rstrip().endswith("Done; no process is left running.")
    assert ran.stderr == ""
