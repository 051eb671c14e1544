"""Child processes, each in its own process group, with a log file and deadlines."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_POLL_SECONDS = 0.1
# A server's own port and those after it, where vLLM's further ranks listen.
PORTS_OF_A_SERVER = 4
_FIRST_PORT = 20_000
_LAST_PORT = 32_000
# What keeps this process's ports from other processes: a server may not listen there yet, or never.
_kept: list[int] = []


class ChildError(RuntimeError):
    """A child did not start, ended early or did not answer in time; the text ends with its last log lines."""


def free_port() -> int:
    """Return a free TCP port of the loopback interface; the three ports after it are free too.

    No later call returns it, in this process or, while this one lives, in another.
    It is below the kernel's ephemeral range, so that no connection takes it before it is used.
    """
    places = (_LAST_PORT - _FIRST_PORT) // PORTS_OF_A_SERVER
    while True:
        port = _FIRST_PORT + PORTS_OF_A_SERVER * secrets.randbelow(places)
        # An abstract socket is in the same namespace as the ports, and goes with its processes.
        keeper = socket.socket(socket.AF_UNIX)
        try:
            keeper.bind(f"\0penstock-port-{port}")
            for own in range(port, port + PORTS_OF_A_SERVER):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", own))
        except OSError as error:
            keeper.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        # The descriptor, which stays until the process ends.
        _kept.append(keeper.detach())
        return port


class Child:
    """A running command; its output goes to *log*.

    It leads its own process group: :meth:`stop` ends all descendants in the group, and a Ctrl-C on the
    terminal does not reach it.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        self.name = name
        self.log = log
        self._exit_code: int | None = None
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the group's."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the command itself is running."""
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the command alone, not to its group."""
        self._process.send_signal(number)

    def tail(self, lines: int = 30) -> str:
        """Return the last lines of the log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait(self, seconds: float) -> int:
        """Wait for the end and return the exit code.

        Raises:
            ChildError: it still runs after *seconds*.

        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise ChildError(f"{self.name} (pid {self.pid}) still runs after {seconds:.0f} s.") from error

    def wait_until(self, ready: Callable[[], bool], *, seconds: float, what: str) -> None:
        """Poll *ready* until it is true.

        Raises:
            ChildError: the child ended, or *seconds* went by.

        """
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running:
                code = self._process.returncode
                raise ChildError(
                    f"{self.name} ended with code {code} before {what}; {self.log}:\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise ChildError(f"{self.name}: not {what} after {seconds:.0f} s; {self.log}:\n{self.tail()}")
            time.sleep(_POLL_SECONDS)

    def stop(self, seconds: float = 20.0) -> int:
        """Send SIGTERM, then SIGKILL to the group after *seconds*; return the exit code. Safe to call twice."""
        if self._exit_code is not None:
            return self._exit_code
        # A stopped process does not see SIGTERM.
        self._signal_group(signal.SIGCONT)
        if self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self._signal_group(signal.SIGKILL)
        self._exit_code = self._process.wait(seconds)
        return self._exit_code

    def kill(self) -> None:
        """``kill -9`` the command alone and reap it."""
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """``kill -9`` the command and all its descendants, as if the machine had failed."""
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _signal_group(self, number: int) -> None:
        # The group outlives its leader while a member lives, so its id is not reused;
        # an empty group whose leader was reaped is gone.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
