"""The command, as a process: what it starts ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks.harness.document import PAGE, TABLES, Results
from benchmarks.harness.results import Section, against
from tests.support.agent.agent import wait_until

ROOT = Path(__file__).resolve().parents[2]


def children(pid: int) -> set[int]:
    """Return the processes that descend from *pid*."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(process.name)] = int(
                process.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found |= new
    return found


def _born(pid: int) -> str:
    """Return when a process began, in ticks since the machine's start; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_run_leaves_nothing(number):
    """With an agent and a process of engines up, in the middle of a measurement."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "policy"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "changes" in line:
                break
        started = {pid: _born(pid) for pid in children(process.pid)}
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert "Interrupted" in rest
    assert len(started) >= 3
    # Another process may have the number of one that has ended.
    wait_until(
        lambda: not [pid for pid, born in started.items() if born and _born(pid) == born], "all have ended"
    )


def test_an_area_that_does_not_end_is_killed_with_what_it_started(monkeypatch):
    """It ignores that it is asked."""
    monkeypatch.setattr(command, "_END_SECONDS", 0.2)
    script = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    with child:
        started = int(child.stdout.readline())
        command._terminate(child)
        assert child.returncode == -signal.SIGKILL
        wait_until(lambda: not _runs(started), "what it started has ended")


def _runs(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # its parent may not have collected its exit status


def _section(area, ratio):
    return Section(area, area, (), (against("w", "ns", [ratio], "p", [1.0]),))


@pytest.fixture
def areas(monkeypatch, tmp_path):
    """Measure nothing: each area has the section, or the error, that is in this."""
    found: dict[str, Any] = {}

    def measure_area(area, *, quick=False):
        del quick
        if isinstance(found[area], Exception):
            raise found[area]
        return found[area]

    monkeypatch.setattr(command, "measure_area", measure_area)
    for name in ("RATIOS", "DOCS", "RUNS"):
        monkeypatch.setattr(command, name, tmp_path / name)
    command.DOCS.mkdir()
    return found


def test_an_area_that_fails_keeps_no_other_from_running(areas, capsys):
    """The command fails; what was found before and after is written: ratios into the tree, tables beside the results."""
    areas |= {"emit": _section("emit", 1.0), "agent": command.AreaError("agent: ended with 1")}
    areas |= {"scrape": _section("scrape", 1.0)}
    assert command.measure_all(list(areas), quick=False) == 1
    for path in (command.DOCS / PAGE, command.RUNS / TABLES):
        written = path.read_text()
        assert "## emit" in written
        assert "## scrape" in written
    assert [
        len(Results.load(path).sections(("emit", "scrape")))
        for path in (command.RATIOS, command.RUNS / command.RESULTS)
    ] == [2, 2]
    assert "Not measured: agent. Their sections are unchanged" in capsys.readouterr().err


def test_a_quick_run_shows_ratios_and_judges_none(areas, capsys):
    """Whatever they are; it writes nothing, and fails only for what was not measured."""
    areas |= {"emit": _section("emit", 100.0)}
    assert command.measure_all(list(areas), quick=True) == 0
    assert "100" in capsys.readouterr().out
    areas["agent"] = command.AreaError("agent: ended with 1")
    assert command.measure_all(list(areas), quick=True) == 1
    assert not command.RATIOS.exists()
    assert not command.RUNS.exists()
    assert not list(command.DOCS.iterdir())


def test_an_unknown_area_is_named():
    """With those that there are."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "engine"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no such area: engine; there are emit, agent, scrape, policy" in done.stderr
