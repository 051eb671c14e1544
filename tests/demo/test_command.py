"""How a demo ends: by itself, by a failure, by a signal; what it says, and what it leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[2]
# A demo of one process, which has a child and a file of its own, as vLLM has.
_DEMO = """
import os, sys
from demo.common.command import run
from demo.common.console import heading, keep_running, say
from demo.common.processes import Child
from demo.common.steps import StepError, until
from demo.common.workspace import run_directory

def play(keep, how):
    with run_directory() as (directory, parts):
        heading("(a) The first step")
        child = Child("server", ["sh", "-c", script[how]], env=os.environ, cwd=directory, log=directory / "server.log")
        parts.callback(child.stop)
        child.wait_until((directory / "file").exists, what="ready")
        say(f"pid {child.pid}")
        if keep:
            (directory / "go").touch()
            keep_running([("logs", str(directory))])
        if how == "missed":
            raise StepError("The first step is not in force, after 124 s")
        if how == "ends":
            until((directory / "go").touch, "The step does not show")

script = {
    "works": "touch file; sleep 600 & wait",
    "stubborn": "trap 'sleep 1; exit' TERM; touch file; sleep 600 & wait",
    "missed": "echo 'INFO 11-28 04:02:11 [a.py:1]  \\u2588 banner'; echo 'ValueError: no port'; touch file; sleep 600 & wait",
    "fails": "echo 'ValueError: no port'; exit 3",
    "ends": "touch file; until [ -e go ]; do sleep 0.1; done; echo 'ValueError: no port'; exit 3",
}
import argparse
options = argparse.ArgumentParser(add_help=False)
options.add_argument("how")
sys.exit(run("demo", "A demo.", play, options))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a new directory for temporary files."""
    place = tmp_path / "tmp"
    place.mkdir()
    return place


@pytest.fixture
def environment(place: Path) -> dict[str, str]:
    """Return the environment of a demo whose temporary files are in that directory."""
    return {**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(_ROOT)}


@pytest.fixture
def kept(environment: dict[str, str], request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """Start a demo that is kept; the parameter is what its server does."""
    how = getattr(request, "param", "works")
    with subprocess.Popen(
        [sys.executable, "-c", _DEMO, "--keep", how],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield process
        process.kill()


def _read_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return line
    raise AssertionError(f"The demo ended before it said {word!r}.")


def _group_lives(pid: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            # One that was killed waits for its new parent.
            if int(group) == pid and state != "Z":
                return True
    return False


def _failed(environment: dict[str, str], how: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", _DEMO, how], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stderr
    return ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(kept: subprocess.Popen[str], place: Path, number: signal.Signals) -> None:
    """No file, no process; the exit code is what a shell gives to the signal."""
    pid = int(_read_until(kept, "pid").split()[-1])
    _read_until(kept, "logs")
    assert _group_lives(pid)
    kept.send_signal(number)
    assert kept.wait(60) == 128 + number
    assert list(place.iterdir()) == []
    assert not _group_lives(pid)
    assert kept.stdout is not None
    assert kept.stdout.read() == "Stopped; no process is left running.\n"


@pytest.mark.parametrize("kept", ["stubborn"], indirect=True)
def test_a_second_signal_changes_nothing(kept: subprocess.Popen[str], place: Path) -> None:
    """Who presses Ctrl-C twice while a server is slow to stop still finds nothing left."""
    pid = int(_read_until(kept, "pid").split()[-1])
    _read_until(kept, "logs")
    kept.send_signal(signal.SIGTERM)
    kept.send_signal(signal.SIGINT)
    kept.send_signal(signal.SIGINT)
    assert kept.wait(60) in {128 + signal.SIGTERM, 128 + signal.SIGINT}
    assert list(place.iterdir()) == []
    assert not _group_lives(pid)


def test_a_signal_during_the_start_leaves_nothing(environment: dict[str, str], place: Path) -> None:
    """As in the middle of a minute in which vLLM loads."""
    with subprocess.Popen(
        [sys.executable, "-c", _DEMO.replace("touch file;", ""), "works"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        _read_until(process, "(a)")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert list(place.iterdir()) == []


def test_the_end_leaves_nothing(environment: dict[str, str], place: Path) -> None:
    """A heading has the time so far; the last line says that it is done."""
    ran = subprocess.run(
        [sys.executable, "-c", _DEMO, "works"], env=environment, capture_output=True, text=True, check=True
    )
    assert re.search(r"^\[ *\d+ s\] ━━━ \(a\) The first step$", ran.stdout, re.MULTILINE)
    assert ran.stdout.endswith("\nDone; no process is left running.\n")
    assert ran.stderr == ""
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("missed", "The first step is not in force, after 124 s"),
        ("fails", "Before it was ready, server (pid "),
        ("ends", "The step does not show, and server (pid "),
    ],
)
def test_last_words(environment: dict[str, str], place: Path, how: str, why: str) -> None:
    """They say the phase, the time, why, the log and what it says, what to try; the directory that they name is there."""
    said = _failed(environment, how)
    (left,) = place.iterdir()
    lines = said.strip().splitlines()
    assert lines[0].startswith("The demo failed after ")
    assert lines[0].endswith(" s, in this phase: (a) The first step")
    assert lines[1].startswith(why)
    assert lines[2:4] == [f"{left}/server.log says:", "  ValueError: no port"]
    assert lines[4] == "Try:"
    assert lines[-1] == f"The logs of this run stay in {left}; remove it when you have read them."
    assert "█" not in said
    assert (left / "server.log").exists()


@pytest.mark.parametrize("kept", ["ends"], indirect=True)
def test_a_server_that_ends_while_all_is_kept_is_reported(kept: subprocess.Popen[str]) -> None:
    """With its exit code, and what its log says."""
    assert "server (pid " in _read_until(kept, "ended with 3")
    assert _read_until(kept, "ValueError") == "  ValueError: no port\n"
