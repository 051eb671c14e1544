"""The tests' end of a zygote: forks that look like a Popen."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from threading import Lock
from typing import TYPE_CHECKING, Any

from tests.support.forks.zygote import Poll, Start

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_POLL_SECONDS = 0.02
# What an interpreter reads before a fork could tell it otherwise.
_READ_AT_START = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONUTF8")


class ForkServer:
    """A running zygote; safe from several threads.

    Args:
        preloaded: modules that it imports.
        env: its environment, without what is for one fork only.
        cwd: where it imports from.
        read: variables that what it imports reads then; a command with another value is not for a fork.

    """

    def __init__(self, *preloaded: str, env: Mapping[str, str], cwd: Path, read: Iterable[str] = ()) -> None:
        self._env = dict(env)
        self._read = (*_READ_AT_START, *read)
        self._lock = Lock()
        self._connection, theirs = multiprocessing.Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        arguments = ", ".join(map(repr, (theirs.fileno(), *preloaded)))
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from tests.support.forks.zygote import serve; serve({arguments})"],
            env=self._env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def fits(self, command: Sequence[str], env: Mapping[str, str]) -> bool:
        """Tell whether a fork of it is what *command* would be."""
        return (
            list(command[:2]) == [sys.executable, "-m"]
            and self._process.poll() is None
            and all(env.get(name) == self._env.get(name) for name in self._read)
        )

    def fork(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        errors: Path,
        output: Path | None = None,
        session: bool = False,
    ) -> Fork:
        """Run *command*, which :meth:`fits`, in a fork."""
        _, _, module, *arguments = command
        to = None if output is None else str(output)
        return Fork(self, Start(module, tuple(arguments), dict(env), str(cwd), to, str(errors), session))

    def ask(self, message: Start | Poll) -> Any:
        """Return its answer.

        Raises:
            RuntimeError: it ended; the text is what it wrote.

        """
        with self._lock:
            try:
                self._connection.send(message)
                return self._connection.recv()
            except (EOFError, OSError) as error:
                self._output.seek(0)
                text = self._output.read().decode(errors="replace")
                raise RuntimeError(f"The fork server has ended: {text[-2000:]}") from error

    def close(self) -> None:
        """End it, and what still runs of its forks."""
        self._connection.close()
        self._process.wait()
        self._output.close()


class Fork:
    """What a Popen is to its child, to a fork."""

    def __init__(self, server: ForkServer, start: Start) -> None:
        self._server = server
        self.args = (start.module, *start.arguments)
        self.returncode: int | None = None
        self.pid: int = server.ask(start)

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.ask(Poll(self.pid))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code.

        Raises:
            TimeoutExpired: it still runs after *timeout* seconds.

        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.args), timeout)
            time.sleep(_POLL_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended; until then its id is its own."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)
