"""Child processes, each in its own process group, with a log file."""

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

from demo.common.interrupts import held
from demo.common.last_words import excerpt
from demo.common.progress import Patience, Wait, Watch

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
# Those that nobody here has ended.
_children: list[Child] = []


class ChildError(RuntimeError):
    """A child did not start, ended early or did not answer in time; the text ends with what its log says."""


def children() -> tuple[Child, ...]:
    """Return the children that were started and not ended by their owners; some may have ended by themselves."""
    return tuple(_children)


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
        with log.open("ab") as output, held():
            self._process = subprocess.Popen(
                list(command),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            _children.append(self)

    @property
    def pid(self) -> int:
        """The process id, which is also the group's."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the command itself is running."""
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code, minus the number of the signal that killed it; None while it runs."""
        code: int | None = self._process.poll()
        return code

    def signal(self, number: int) -> None:
        """Send a signal to the command alone, not to its group."""
        self._process.send_signal(number)

    def ended(self) -> str:
        """Return how it ended and what its log says."""
        how = (
            f"was killed by signal {-self.code}" if self.code and self.code < 0 else f"ended with {self.code}"
        )
        return f"{self.name} (pid {self.pid}) {how}.\n{excerpt(self.log)}"

    def wait(self) -> int:
        """Wait for the end and return the exit code.

        Raises:
            ChildError: it makes no progress.

        """
        wait = Wait(Watch(self.pid, self.log), Patience(working=True))
        while self.running:
            if over := wait.over(f"{self.name} has not ended yet; waiting"):
                raise ChildError(
                    f"{self.name} (pid {self.pid}): not ended after {over}.\n{excerpt(self.log)}"
                )
            time.sleep(_POLL_SECONDS)
        return self._process.wait()

    def wait_until(self, ready: Callable[[], bool], *, what: str, seconds: float | None = None) -> None:
        """Poll *ready* until it is true, for as long as the child makes progress, or for *seconds*.

        Raises:
            ChildError: the child ended, makes no progress, or *seconds* went by.

        """
        wait = Wait(Watch(self.pid, self.log), Patience(working=True))
        deadline = None if seconds is None else time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise ChildError(f"Before it was {what}, {self.ended()}")
            over = wait.over(f"{self.name}: not {what} yet; waiting" if seconds is None else "")
            if deadline is not None:
                over = f"{seconds:.0f} s" if time.monotonic() > deadline else ""
            if over:
                raise ChildError(
                    f"{self.name} (pid {self.pid}): not {what} after {over}.\n{excerpt(self.log)}"
                )
            time.sleep(_POLL_SECONDS)

    def stop(self, seconds: float = 20.0) -> int:
        """Send SIGTERM, then SIGKILL to the group after *seconds*; return the exit code. Safe to call twice."""
        if self._exit_code is not None:
            return self._exit_code
        self._disown()
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
        self._disown()
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """``kill -9`` the command and all its descendants, as if the machine had failed."""
        self._disown()
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _disown(self) -> None:
        with contextlib.suppress(ValueError):
            _children.remove(self)

    def _signal_group(self, number: int) -> None:
        # The group outlives its leader while a member lives, so its id is not reused;
        # an empty group whose leader was reaped is gone.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
