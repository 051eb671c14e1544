"""Waits of the demos: as long as what is waited for makes progress, not for a fixed time.

A wait has :class:`Patience`, which :class:`Watch` feeds with what the processes did in the meantime. On a machine with more
work than cores it lasts longer: a second in which the processes were ready and had no core counts only in part.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PATIENCE_SECONDS = 120.0
"""Without progress, on a machine with a free core. The longest wait of vLLM, for a reader of prefill's blocks, is 30 s."""
LIMIT_SECONDS = 1800.0
"""Of any wait, whatever progress there is: a server that starts for half an hour is not going to."""
REPORT_SECONDS = 30.0
"""From one line about a wait to the next."""
_LOOK_SECONDS = 1.0
# Of a core. A server that serves nobody polls, which takes less; one that loads a model takes all it gets.
_COMPUTES = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")

_began = time.monotonic()
_phase = "its start"


def report(text: str) -> None:
    """Print a line with the seconds since the demo began."""
    print(f"[{time.monotonic() - _began:3.0f} s] {text}", flush=True)


def begin_phase(text: str, *, mark: str = "") -> None:
    """Report a phase, behind a *mark*; :func:`place` names it from now on."""
    global _phase  # noqa: PLW0603  (a process plays one demo)
    _phase = text
    report(f"{mark}{text}")


def place() -> str:
    """Return the current phase and the time so far, as the words after "failed"."""
    return f"after {time.monotonic() - _began:.0f} s, in this phase: {_phase}"


@dataclass(frozen=True, slots=True)
class Activity:
    """What processes did between two looks.

    Attributes:
        logged: whether their log grew.
        ran: seconds of a core that they had.
        queued: seconds in which a thread of theirs was ready and waited for a core; 0 where the kernel does not count it.

    """

    logged: bool = False
    ran: float = 0.0
    queued: float = 0.0


class Patience:
    """How long a wait goes on.

    Args:
        seconds: without progress.
        limit: seconds of the wait in all.
        working: whether a growing log and computing are progress. They are while a process starts. Later they are not: a
            server that has lost a request may log and poll forever.

    """

    def __init__(
        self, seconds: float = PATIENCE_SECONDS, *, limit: float = LIMIT_SECONDS, working: bool = False
    ) -> None:
        self._seconds = self._left = seconds
        self._limit = limit
        self._working = working
        self.spent = 0.0

    def spend(self, seconds: float, seen: Activity) -> None:
        """Spend *seconds*, in which the processes did what was *seen*."""
        self.spent += seconds
        wanted = seen.ran + seen.queued
        if self._working and (seen.logged or wanted >= _COMPUTES * seconds):
            self._left = self._seconds
        else:
            self._left -= seconds * (seen.ran / wanted if wanted else 1.0)

    def exhausted(self) -> str:
        """Return how long the wait was, once it is to end; empty while it goes on."""
        if self._left <= 0 and self._working:
            return f"{self.spent:.0f} s, the last {self._seconds:.0f} s without progress"
        if self._left <= 0:
            return f"{self.spent:.0f} s, {self._seconds:.0f} s of them with a free core"
        if self.spent >= self._limit:
            return f"{self.spent:.0f} s, the longest that anything is waited for"
        return ""


class Watch:
    """Looks at a process, its descendants, and its log."""

    def __init__(self, pid: int, log: Path | None = None) -> None:
        """Begin; the first :meth:`look` tells what happened since."""
        self._pid = pid
        self._log = log
        self._size = self._logged()
        self._threads = _thread_times(self._pid)

    def look(self) -> Activity:
        """Return what happened since the last look."""
        threads, size = _thread_times(self._pid), self._logged()
        before = self._threads
        ran = sum(max(0.0, now[0] - before.get(thread, (0.0, 0.0))[0]) for thread, now in threads.items())
        queued = sum(max(0.0, now[1] - before.get(thread, (0.0, 0.0))[1]) for thread, now in threads.items())
        grown, self._size, self._threads = size > self._size, size, threads
        return Activity(grown, ran, queued)

    def _logged(self) -> int:
        with suppress(OSError):
            return self._log.stat().st_size if self._log is not None else 0
        return 0


class Wait:
    """One wait: :meth:`over` after each vain attempt."""

    def __init__(self, watch: Watch, patience: Patience) -> None:
        """Begin."""
        self._watch = watch
        self._patience = patience
        self._looked = self._reported = time.monotonic()

    def over(self, what: str = "") -> str:
        """Return how long it was, once it is to end; empty to go on. Report *what* is waited for every half a minute, if it is given."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._patience.spend(now - self._looked, self._watch.look())
            self._looked = now
        if what and now - self._reported >= REPORT_SECONDS:
            self._reported = now
            report(what)
        return self._patience.exhausted()


def wait_for_others() -> Wait:
    """Begin a wait for what this process's children do together."""
    return Wait(Watch(os.getpid()), Patience())


def run_command(
    command: Sequence[str], *, env: Mapping[str, str], stderr: int, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a short command to its end, without input; its output is text.

    Raises:
        TimeoutError: it does not end.

    """
    with subprocess.Popen(
        list(command),
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        try:
            return _completed(process, command)
        except BaseException:
            process.kill()
            raise


def _completed(process: subprocess.Popen[str], command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    wait = wait_for_others()
    while True:
        with suppress(subprocess.TimeoutExpired):
            output, errors = process.communicate(timeout=_LOOK_SECONDS)
            return subprocess.CompletedProcess(command, process.returncode, output, errors or "")
        if over := wait.over():
            raise TimeoutError(f"{' '.join(command)} has not ended after {over}.")


def _thread_times(pid: int) -> Mapping[str, tuple[float, float]]:
    """Return the seconds on and before a core of each thread of a process and its descendants."""
    parents = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                # The name, in parentheses, may have spaces; state and parent are behind it.
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    times = {}
    for each in _with_descendants(pid, parents):
        with suppress(OSError):
            for thread in (_PROC / str(each) / "task").iterdir():
                with suppress(OSError, IndexError, ValueError):
                    times[thread.name] = _times_of(thread)
    return times


def _with_descendants(pid: int, parents: Mapping[int, int]) -> Iterable[int]:
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def _times_of(thread: Path) -> tuple[float, float]:
    with suppress(FileNotFoundError):
        ran, queued, _ = (thread / "schedstat").read_text().split()
        return int(ran) / 1e9, int(queued) / 1e9
    # A kernel without CONFIG_SCHED_INFO: user and system time, in ticks.
    fields = (thread / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS, 0.0
