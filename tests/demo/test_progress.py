"""Waits of the demos: patience for what makes progress, and for a machine that has no time."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from demo.common import progress
from demo.common.progress import Activity, Patience, Watch, run_command
from demo.common.steps import until

if TYPE_CHECKING:
    from pathlib import Path

_IDLE = Activity()
_ALONE = Activity(ran=1.0)
_SHARED = Activity(ran=0.2, queued=0.8)


def _after(patience: Patience, seconds: int, *seen: Activity) -> str:
    """Spend seconds one by one, in which the processes did in turn what was *seen*."""
    for second in range(seconds):
        patience.spend(1.0, seen[second % len(seen)])
    return patience.exhausted()


@pytest.mark.parametrize(
    ("working", "seen", "lasts"),
    [
        pytest.param(True, _IDLE, 120, id="a start that does nothing"),
        pytest.param(True, Activity(ran=0.05), 120, id="a start that only polls"),
        pytest.param(True, _ALONE, 1800, id="a start that computes"),
        pytest.param(True, _SHARED, 1800, id="a start that would compute"),
        pytest.param(True, Activity(logged=True), 1800, id="a start that logs"),
        pytest.param(False, _IDLE, 120, id="a step that idles"),
        pytest.param(False, _ALONE, 120, id="a step beside servers that compute"),
        pytest.param(False, Activity(logged=True), 120, id="a step beside servers that log"),
        pytest.param(False, _SHARED, 600, id="a step that has a fifth of the machine"),
        pytest.param(False, Activity(ran=0.001, queued=0.999), 1800, id="a step that has nothing of it"),
    ],
)
def test_how_long_a_wait_lasts(working: bool, seen: Activity, lasts: int) -> None:
    """120 s without progress, counted in seconds that the processes could use; half an hour in all."""
    assert _after(Patience(working=working), lasts - 2, seen) == ""
    assert f"{lasts} s, " in _after(_spent(lasts, seen, working=working), 0)


def _spent(seconds: int, seen: Activity, *, working: bool) -> Patience:
    patience = Patience(working=working)
    _after(patience, seconds, seen)
    # What is added up of fifths is no whole number.
    patience.spend(1e-6, _IDLE)
    return patience


def test_one_sign_renews_the_patience() -> None:
    """A log that grows once a minute belongs to a server that lives."""
    signs = [Activity(logged=True), *[_IDLE] * 59]
    assert _after(Patience(working=True), 1200, *signs) == ""


def test_a_log_that_grows_is_seen(tmp_path: Path) -> None:
    """Once for each time that it grew."""
    log = tmp_path / "server.log"
    watch = Watch(os.getpid(), log)
    assert not watch.look().logged
    log.write_text("a line\n")
    assert watch.look().logged
    assert not watch.look().logged


def test_a_grandchild_that_computes_is_seen() -> None:
    """Its time is that of the process that is watched; so is the time in which it waits for a core."""
    computes = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); input()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {computes!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watch = Watch(process.pid)
        process.stdout.readline()
        seen = watch.look()
        process.stdin.write(b"\n")
        process.stdin.close()
    assert seen.ran >= 0.3


def test_a_process_that_is_gone_does_nothing() -> None:
    """Nor is it an error to look."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        watch = Watch(process.pid)
        assert watch.look() == Activity()


def test_a_kernel_that_does_not_count_waits(tmp_path: Path) -> None:
    """Then the ticks of the process are all there is."""
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(f"7 (a b) c) S {' 0' * 10} {3 * ticks} {ticks} 0\n")
    assert progress._times_of(tmp_path) == (4.0, 0.0)


def test_a_command_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is gone before the error."""
    monkeypatch.setattr(progress, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(progress, "wait_for_others", lambda: progress.Wait(Watch(0), Patience(0.0)))
    with pytest.raises(TimeoutError, match="sleep 600 has not ended after"):
        run_command(["sleep", "600"], env=os.environ, stderr=subprocess.STDOUT)


def test_a_command_that_ends() -> None:
    """Its output and its exit code come back; stderr apart, or in it."""
    command = [sys.executable, "-c", "import sys; print('out'); sys.stderr.write('err'); sys.exit(3)"]
    apart = run_command(command, env=os.environ, stderr=subprocess.PIPE)
    assert (apart.returncode, apart.stdout, apart.stderr) == (3, "out\n", "err")
    assert run_command(command, env=os.environ, stderr=subprocess.STDOUT).stderr == ""


def test_a_long_wait_says_what_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every half a minute, with the time so far; one with a bound of its own, as tests have, says nothing."""
    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.0)
    attempts = iter([False, False, True])
    until(lambda: next(attempts), "It is not there")
    attempts = iter([False, True])
    until(lambda: next(attempts), "It is not there", seconds=60)
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition("] ")[2] for line in printed] == ["It is not there yet; waiting"] * 2
    assert all(line.startswith("[") for line in printed)
