"""The process that forks: it imports, answers on a connection, and starts no thread, no channel and no event loop.

:func:`serve` answers :class:`Start` and :class:`Poll` until the connection's other end is closed, also by a SIGKILL to the
tests; then it ends what still runs of its forks.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Start:
    """Fork what ``python -m`` would run; the answer is its pid.

    Attributes:
        output: what standard output is appended to; None leaves the zygote's own.
        errors: what standard error is appended to.
        session: whether it leads a session of its own.

    """

    module: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    output: str | None
    errors: str
    session: bool


@dataclass(frozen=True, slots=True)
class Poll:
    """Ask for the exit code of a fork, negative for a signal; the answer is None while it runs."""

    pid: int


def serve(descriptor: int, *preloaded: str) -> None:
    """Import, answer, and in a fork run what it is for."""
    connection = Connection(descriptor)
    for name in preloaded:
        import_module(name)
    gc.collect()
    gc.freeze()  # what is never looked at again is never copied
    start = _answer(connection)
    if start is not None:
        _become(start)


def _answer(connection: Connection) -> Start | None:
    """Answer until the other end is gone; in a fork, return what it is to run."""
    codes: dict[int, int] = {}
    running: dict[int, Start] = {}
    while True:
        try:
            message = connection.recv()
        except EOFError:
            _end(running)
            return None
        if isinstance(message, Start):
            pid = os.fork()
            if not pid:
                connection.close()
                return message
            # An id is given again once its process was waited for.
            codes.pop(pid, None)
            running[pid] = message
            connection.send(pid)
        else:
            if message.pid not in codes:
                pid, status = os.waitpid(message.pid, os.WNOHANG)
                if pid:
                    del running[pid]
                    codes[pid] = os.waitstatus_to_exitcode(status)
            connection.send(codes.get(message.pid))


def _end(running: Mapping[int, Start]) -> None:
    """Kill forks whose tests are gone; none has been waited for, so the ids are still theirs."""
    for pid, start in running.items():
        with suppress(ProcessLookupError):
            if start.session and os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)


def _become(start: Start) -> None:
    if start.session:
        os.setsid()
    os.chdir(start.cwd)
    os.environ.clear()
    os.environ.update(start.env)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for path, target in ((start.output, 1), (start.errors, 2)):
        if path is not None:
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), target)
    sys.argv[1:] = start.arguments
    runpy.run_module(start.module, run_name="__main__", alter_sys=True)
