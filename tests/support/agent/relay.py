"""A real ``penstock-relay`` process, and the command line that talks to it."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner
from penstock.agent.ctl.connection.client import ANSWER_DEADLINE, Client
from penstock.agent.ctl.connection.contexts import ClientTls
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.main import cli
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.agent import wait_until
from tests.support.agent.forked_agent import inherited, launch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result
    from google.protobuf.message import Message

    from tests.support.forks.fork_server import Fork

_MODULE = "tests.support.agent.relay_main"
_STARTED = "relay started"


class RelayProcess:
    """One relay; its admin service is the unix socket ``relay.sock`` of the directory, or what the flags say."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.address = f"unix://{directory}/relay.sock"
        self._log = directory / "relay.log"
        own = (
            []
            if any(flag.startswith("--admin-listen=") for flag in flags)
            else [f"--admin-listen={self.address}"]
        )
        self.flags = [*own, "--http=127.0.0.1:0", "--page=off", *flags]
        self.process: Fork | subprocess.Popen[bytes] | None = None

    def start(self) -> RelayProcess:
        """Start it and wait until it answers, and has said so."""
        command = [sys.executable, "-m", _MODULE, *self.flags]
        before = self.log().count(_STARTED) if self._log.exists() else 0
        self.process = launch(command, env=inherited(), log=self._log)
        wait_until(lambda: self._answers() and self.log().count(_STARTED) > before, "the relay answers")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            self.status()
        except FailedError:
            return False
        return True

    def log(self) -> str:
        """Return all that it wrote to standard error."""
        return self._log.read_text()

    def call(self, method: str, request: Message, timeout: float = ANSWER_DEADLINE) -> Any:
        """Call its admin service; *timeout* in seconds."""
        client = Client(self.address, ClientTls())
        try:
            return client.call(method, request, timeout)
        finally:
            client.close()

    def status(self) -> admin.AgentStatus:
        """Return its status."""
        found: admin.AgentStatus = self.call("GetStatus", admin.GetStatusRequest())
        return found

    def wait_for(self, **states: str) -> None:
        """Wait until agents have these states."""
        wait_until(
            lambda: states.items() <= {each.name: each.state for each in self.status().agents}.items(),
            f"the agents are {states}",
        )

    def agentctl(self, *arguments: str) -> Result:
        """Run a command line against it."""
        return CliRunner(env={"AGENTCTL_ADDRESS": self.address}).invoke(cli, arguments)

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """End it and return its exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(sig)
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the relay did not end:\n{self.log()}") from None


@contextmanager
def running_relay(directory: Path, *flags: str) -> Iterator[RelayProcess]:
    """Run a relay; it is stopped at the end."""
    relay = RelayProcess(directory, *flags)
    try:
        yield relay.start()
    finally:
        relay.stop()
