"""``agentctl doctor`` where no agent answers: each cause has its own sentence and advice."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trustme
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.agent.ctl.socket_probe import probe_address

from tests.support.agent.agent import short_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]


def _doctor(address: str) -> str:
    result = CliRunner().invoke(cli, ["doctor", "--address", address])
    assert result.exit_code == 1
    return result.stdout


def test_an_agent_that_cannot_be_reached_has_a_cause() -> None:
    """Each cause of a failed connection has its own sentence and advice."""
    with short_directory() as directory:
        path = directory / "admin.sock"
        assert f"directory {directory}/none does not exist" in _doctor(f"{directory}/none/admin.sock")
        assert f"socket {path} does not exist" in _doctor(str(path))
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            # Bound and not listening, as after kill -9.
            assert f"no process listens at {path}: a leftover socket" in _doctor(str(path))
            assert f"sockets there: {path}" in _doctor(f"{directory}/wrong.sock")
        (directory / "file").write_text("")
        said = _doctor(f"{directory}/file")
        assert f"{directory}/file is not a socket" in said
        assert "--admin-listen" in said


def test_a_socket_of_another_user(harness: AdminHarness) -> None:
    """The finding names the socket's owner, as whom to run agentctl."""
    path = Path(harness.address.removeprefix("unix://"))
    path.parent.chmod(0o755)
    path.chmod(0o600)
    code = (
        "import os, sys\n"
        "from penstock.agent.ctl.socket_probe import probe_address\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "else: os.chmod(sys.argv[1], 0)\n"
        "print(probe_address('unix://' + sys.argv[1]))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert f"may not open {path}: it belongs to " in out
    assert "run agentctl as " in out


def test_a_port_without_a_listener() -> None:
    """A closed port is a cause; an open one is none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert probe_address(f"127.0.0.1:{port}") is None
    cause = probe_address(f"127.0.0.1:{port}")
    assert cause is not None
    assert cause.what == f"no process listens at 127.0.0.1:{port}"


def test_a_socket_of_something_else(harness: AdminHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines' socket answers, but not as an agent does; one of an agent that hangs does not answer at all."""
    assert "it is the engines' socket (give --address the value of --admin-listen)" in _doctor(
        harness._feed_address
    )
    monkeypatch.setattr("penstock.agent.ctl.commands.inspect.diagnose._ANSWER_SECONDS", 0.2)
    with short_directory() as directory, socket.socket(socket.AF_UNIX) as hung:
        hung.bind(f"{directory}/admin.sock")
        hung.listen()
        said = _doctor(f"{directory}/admin.sock")
    assert "admin.sock accepts connections but does not answer" in said
    assert "the agent hangs or is stopped" in said


def test_a_port_of_something_else(tmp_path: Path) -> None:
    """A connection that the peer closes is advised to check the certificates."""
    authority = trustme.CA()
    files = {}
    for name, blob in (
        ("ca", authority.cert_pem),
        ("cert", (mine := authority.issue_cert("me")).cert_chain_pems[0]),
        ("key", mine.private_key_pem),
    ):
        files[name] = tmp_path / f"{name}.pem"
        blob.write_to_path(str(files[name]))
    tls = [part for name, path in files.items() for part in (f"--tls-{name}", str(path))]
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        # It hangs up at once, as a server does that does not accept a certificate.
        thread = threading.Thread(target=_hang_up, args=(server,), daemon=True)
        thread.start()
        result = CliRunner().invoke(cli, [*tls, "doctor", "--address", address])
    assert result.exit_code == 1
    assert f"no agent answers at {address}, or a certificate was refused" in result.stdout
    assert "--admin-tls-client-ca" in result.stdout


def _hang_up(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            server.accept()[0].close()
