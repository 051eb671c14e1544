"""A real ``nats-server`` with JetStream on loopback, alone or in a cluster."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import nats
from demo.common.processes import free_port
from tests.support.agent.agent import wait_until
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nats.aio.client import Client


class NatsServer:
    """One server; it can be killed, stopped for a time and started again on its directory."""

    def __init__(
        self, directory: Path, *, port: int = 0, config: str = "", flags: Sequence[str] = ()
    ) -> None:
        """Keep the data in *directory*; *config* is added to the configuration."""
        program = shutil.which("nats-server")
        assert program is not None, "no nats-server on PATH: scripts/need-nats.sh installs it (make nats)"
        self.port = port or free_port()
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "log"
        file = directory / "nats.conf"
        file.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream: {{store_dir: "{directory}/data"}}\n{config}\n'
        )
        self._command = [program, "-c", str(file), *flags]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> NatsServer:
        """Start it and wait until it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(self._listens, f"nats-server listens, see {self._log}")
        return self

    def kill(self) -> None:
        """Kill it with SIGKILL. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Stop it where it stands: its connections stay."""
        assert self._process is not None
        stop(self._process.pid)

    def go_on(self) -> None:
        """Let it go on after a stop."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def client(self, **options: object) -> Client:
        """Connect a client of the test's own; ``async with`` closes it, whatever the test finds.

        Its ``keys``, ``history`` and ``watch`` may say that a bucket with keys has none: what they ask first may be
        answered after a key is sent and before it arrives. :func:`read_entries` reads what is there.
        """
        return await nats.connect(self.url, **options)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
