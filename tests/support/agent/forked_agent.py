"""Agents and relays that are forks of a process that has imported both: a start takes a tenth of a second of a core, not a whole one."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.forks.fork_server import Fork, ForkServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_RUN_SECONDS = 120.0
_ROOT = Path(__file__).parents[3]
_IMPORTED = (
    "penstock.agent.daemon.main",
    "penstock.agent.daemon.daemon",
    "penstock.agent.daemon.backup_command",
    "penstock.agent.relay.main",
    "penstock.agent.relay.run",
    "tests.faults.agent_main",
)


def inherited() -> dict[str, str]:
    """Return what an agent or a relay gets of this process's environment.

    Not LD_PRELOAD: vLLM sets it for its children when it is configured for the CPU, as a test of the scheduler does.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "PENSTOCK_")) and name != "LD_PRELOAD"
    }


@functools.cache
def _server() -> ForkServer:
    """Start the fork server; it ends with this process."""
    env = inherited()
    # gRPC reads it when it is imported, which an agent of its own interpreter does after setting it.
    env.setdefault("GRPC_VERBOSITY", "NONE")
    return ForkServer(*_IMPORTED, env=env, cwd=_ROOT)


def launch(command: Sequence[str], *, env: Mapping[str, str], log: Path) -> Fork | subprocess.Popen[bytes]:
    """Start an agent or a relay, whose standard error is appended to *log*; in an interpreter of its own where a fork does not fit."""
    server = _server()
    if server.fits(command, env):
        return server.fork(command, env=env, cwd=_ROOT, errors=log)
    with log.open("ab") as errors:
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=errors, cwd=_ROOT)


def run(
    command: Sequence[str], *, env: Mapping[str, str], directory: Path
) -> subprocess.CompletedProcess[str]:
    """Run a command of the agent to its end, within two minutes; its output passes through files in *directory*."""
    server = _server()
    if not server.fits(command, env):
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False, cwd=_ROOT
        )
    with tempfile.TemporaryDirectory(dir=directory) as name:
        output, errors = Path(name, "output"), Path(name, "errors")
        fork = server.fork(command, env=env, cwd=_ROOT, output=output, errors=errors)
        try:
            code = fork.wait(_RUN_SECONDS)
        finally:
            fork.kill()
        return subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())
