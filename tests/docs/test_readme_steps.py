"""The README's three steps, typed as they stand there: an engine's environment, an agent, a look."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.agent.agent import short_directory, wait_until
from tests.support.samples.blocks import blocks, steps
from tests.support.samples.stage import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECTION = "## Add it to a vLLM server"
_SECONDS = 120


def _section() -> str:
    text = (ROOT / "README.md").read_text()
    return text[text.index(_SECTION) :].partition("\n## ")[0]


def _programs(directory: Path) -> None:
    """Put stand-ins for what would install packages and load a model before the real programs."""
    directory.mkdir()
    for name, module in (("pip", "pip_check"), ("vllm", "stand_in_engine")):
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.support.samples.{module} "$@"\n')
        script.chmod(0o755)


def _environment(directory: Path) -> dict[str, str]:
    """Return an environment in which the agent's defaults are below *directory*."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PENSTOCK_"))
    }
    return {
        **inherited,
        "PATH": f"{directory / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PENSTOCK_AGENT_LISTEN": f"unix://{directory}/run/ingest.sock",
        "PENSTOCK_AGENT_ADMIN_LISTEN": f"unix://{directory}/run/admin.sock",
        "PENSTOCK_AGENT_STATE_DIR": str(directory / "state"),
        "PENSTOCK_AGENT_HTTP": "127.0.0.1:0",
        "AGENTCTL_ADDRESS": f"unix://{directory}/run/admin.sock",
    }


@contextmanager
def _typed(script: str, directory: Path, log: Path) -> Iterator[None]:
    """Type *script* into a terminal of its own, and end what it runs."""
    with log.open("wb") as output:
        terminal = subprocess.Popen(
            ["bash", "-ec", script.replace("/run/penstock", str(directory / "run"))],
            cwd=ROOT,
            env=_environment(directory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield
            assert terminal.poll() is None, log.read_text()
        finally:
            if terminal.poll() is None:
                os.killpg(terminal.pid, signal.SIGTERM)
            terminal.wait(_SECONDS)


def _run(command: str, directory: Path, http: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("127.0.0.1:9464", http)],
        env=_environment(directory),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def test_the_three_steps_work_as_written() -> None:
    """The engine serves before there is an agent; the agent has it, and says that nothing is wrong."""
    engine, agent, look = blocks(_section())
    assert (engine.language, agent.language, look.language) == ("shell", "shell", "console")
    with short_directory() as directory:
        _programs(directory / "bin")
        with (
            _typed("\n".join(engine.lines), directory, directory / "engine.log"),
            _typed("\n".join(agent.lines), directory, directory / "agent.log"),
        ):
            addresses = directory / "state" / "addresses.json"
            wait_until(addresses.exists, "the agent has started")
            http = json.loads(addresses.read_text())["http"]
            wait_until(
                lambda: "engine 0: connected" in _run("agentctl doctor", directory).stdout,
                "the engine is connected",
            )
            for step in steps(look):
                done = _run(step.command, directory, http)
                assert (done.returncode, bool(done.stdout)) == (0, True), (step.command, done)
            assert "no problems" in _run("agentctl doctor", directory).stdout
