"""Runs the replay in processes of its own, under valgrind, under strace or alone, and returns the plays by scenario and side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from benchmarks.replay.costs import Play
from benchmarks.replay.reports import parse_calls, parse_dump

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Plays: TypeAlias = "dict[tuple[str, str], list[Play]]"
"""The plays by scenario and side."""

RECORDED: Final = (
    Path(__file__).resolve().parents[2] / "tests" / "golden" / "incidents" / "nothing-wrong.bundle"
)
"""What is played: two engines over NIXL, and nothing wrong."""

_SECONDS: Final = 600
_MOST_EVENTS: Final = 10_000


def record(bundle: Path, events: Path) -> None:
    """Write the events of *bundle* as ``agentctl get events -o json`` prints them."""
    done = CliRunner(env={"NO_COLOR": "1", "TZ": "UTC", "AGENTCTL_ADDRESS": ""}).invoke(
        cli,
        [
            "--bundle",
            str(bundle),
            "get",
            "events",
            "--since=24h",
            f"--limit={_MOST_EVENTS}",
            "--output=json",
        ],
        catch_exceptions=False,
    )
    events.write_text(done.stdout)


def count(events: Path, directory: Path, rounds: int) -> tuple[Plays, Plays]:
    """Return the instructions and the allocations of each play, under callgrind."""
    dumps = directory / "callgrind"
    options = ("-q", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no")
    plays = _run(["valgrind", *options, f"--callgrind-out-file={dumps}"], "callgrind", events, rounds)
    instructions, allocations = {}, {}
    for path in directory.glob("callgrind*"):
        with path.open() as lines:
            dump = parse_dump(lines)
        if dump is not None:
            instructions[dump.label] = float(dump.instructions)
            allocations[dump.label] = float(dump.allocations)
    return _with(plays, instructions), _with(plays, allocations)


def trace(events: Path, directory: Path, rounds: int) -> Plays:
    """Return the system calls of each play, under strace."""
    written = directory / "strace"
    plays = _run(["strace", "-o", str(written)], "strace", events, rounds)
    with written.open(errors="replace") as lines:
        calls = {label: float(number) for label, number in parse_calls(lines).items()}
    return _with(plays, calls)


def measured(meter: str, events: Path, rounds: int) -> Plays:
    """Return what a meter of the process itself has counted in each play: ``clock`` or ``blocks``."""
    plays = _run([], meter, events, rounds)
    return _with(plays, {each["label"]: each["counted"] for each in plays})


def workers(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the nanoseconds of real NIXL workers by measure and side."""
    done = _child([], ["benchmarks.replay.workers", str(rounds)])
    found: dict[str, dict[str, list[float]]] = json.loads(done)
    return found


def _run(before: Sequence[str], meter: str, events: Path, rounds: int) -> list[dict[str, Any]]:
    lines = _child(before, ["benchmarks.replay", meter, str(events), str(rounds)]).splitlines()
    return [json.loads(line) for line in lines]


def _child(before: Sequence[str], module: Sequence[str]) -> str:
    # The order of sets of strings is the same in each run.
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [*before, sys.executable, "-m", *module]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, timeout=_SECONDS, check=True)
    return done.stdout


def _with(plays: Sequence[Mapping[str, Any]], counted: Mapping[str, float]) -> Plays:
    found: Plays = defaultdict(list)
    for each in plays:
        label = each["label"]
        scenario, side, _ = label.split("/")
        sizes = {name: int(each[name]) for name in ("steps", "requests", "transfers", "entries")}
        found[scenario, side].append(Play(**sizes, counted=counted[label]))
    return dict(found)
