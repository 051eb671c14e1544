"""Everything that an agent or a relay writes and answers, to look for a secret in."""

from __future__ import annotations

import base64
import zipfile
from typing import TYPE_CHECKING

from click.testing import CliRunner
from penstock.agent.ctl.main import cli

if TYPE_CHECKING:
    from tests.support.agent.agent import AgentProcess
    from tests.support.agent.relay import RelayProcess

_COMMANDS = (
    ("doctor", "-o", "json"),
    ("diagnose", "-o", "json"),
    ("get", "engines", "-o", "json"),
    ("get", "events", "-o", "json"),
    ("get", "policy", "-o", "json"),
    ("get", "audit", "-o", "json"),
    ("get", "peers", "-o", "json"),
    ("version", "-o", "json"),
    ("describe", "engine", "0"),
    ("explain", "r"),
    ("trace", "r"),
)


def spellings(secret: bytes) -> tuple[bytes, ...]:
    """Return a secret as it is, in hex and in base64."""
    return (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"="))


def outputs(agent: AgentProcess) -> dict[str, bytes]:
    """Return its log, metrics, health, state, a bundle's parts, a backup's files and answers to agentctl, by name."""
    bundle, backup = agent.directory / "b.penstock", agent.directory / "backup"
    found = _answers(agent.admin)
    found["bundle"] = _run(agent.admin, "bundle", "-f", str(bundle))
    with zipfile.ZipFile(bundle) as archive:
        found |= {f"bundle/{name}": archive.read(name) for name in archive.namelist()}
    done = agent.run("backup", str(backup))
    assert done.returncode == 0, done.stderr
    files = [*backup.rglob("*"), *agent.state_dir.rglob("*")]
    found |= {str(path): path.read_bytes() for path in files if path.is_file() and path.stat().st_size}
    found |= {path: agent.get(path)[1].encode() for path in ("/metrics", "/healthz")}
    return {**found, "log": agent.log().encode()}


def relay_outputs(relay: RelayProcess) -> dict[str, bytes]:
    """Return its log and its answers to agentctl, by name."""
    return {**_answers(relay.address), "status": str(relay.status()).encode(), "log": relay.log().encode()}


def _answers(address: str) -> dict[str, bytes]:
    return {" ".join(command): _run(address, *command) for command in _COMMANDS}


def _run(address: str, *command: str) -> bytes:
    return CliRunner(env={"AGENTCTL_ADDRESS": address}).invoke(cli, command).output.encode()
