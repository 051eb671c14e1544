"""Runs all benchmarks beside their peers: ``make bench``, ``make bench-quick``.

All numbers of a run go below ``.cache/benchmarks``; the ratios and the page made of them are in the tree.

Each area runs in its own process and session: a Ctrl-C reaches only this process, which interrupts the area once and waits until
it has stopped its children. Finished areas are written; a failed area does not stop the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness import plots
from benchmarks.harness.document import IMAGES, PAGE, TABLES, Results, ratios_of, terminal
from benchmarks.harness.interleave import Run
from benchmarks.harness.machine import circumstances, load
from benchmarks.harness.results import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO

AREAS: Final = (
    "emit", "instructions", "engine", "idle", "agent", "scrape", "policy", "relay", "page", "ec", "diagnosis",
)  # fmt: skip
"""In the order of the document; each is a module with ``measure(run) -> Section``."""

QUICK: Final = ("emit", "agent", "scrape", "policy", "relay")
"""Areas that need no engine."""

_HERE: Final = Path(__file__).resolve().parent
RATIOS: Final = _HERE / "ratios.json"
DOCS: Final = _HERE.parent / "docs"
RUNS: Final = _HERE.parent / ".cache" / "benchmarks"
RESULTS: Final = "results.json"

_AREA_SECONDS: Final = 15 * 60
_END_SECONDS: Final = 180
"""Six engines stop one after the other, each within twenty seconds."""


class AreaError(RuntimeError):
    """An area failed; its own error was printed before."""


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


# One area, in its own process.


def run_area(area: str, answer: IO[str], *, quick: bool) -> None:
    """Measure one area and write its section to *answer*."""
    module = import_module(f"benchmarks.areas.{area}")
    measure: Callable[[Run], Section] = module.measure
    began, before = time.monotonic(), load()

    def progress(text: str) -> None:
        say(f"[{area} {time.monotonic() - began:4.0f} s] {text}")

    found = measure(Run(progress, quick))
    section = replace(
        found,
        circumstances=circumstances(before),
        meaning=module.MEANING,
        plotted=getattr(module, "PLOTTED", ()),
    )
    json.dump(section.as_json(), answer)


def measure_area(area: str, *, quick: bool = False) -> Section:
    """Run one area to its end.

    Raises:
        AreaError: it failed or exceeded its time.

    """
    command = [sys.executable, "-m", "benchmarks", "--be", area, *(["--quick"] if quick else [])]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        answer, _ = child.communicate(timeout=_AREA_SECONDS)
    except subprocess.TimeoutExpired:
        raise AreaError(f"{area}: not done after {_AREA_SECONDS} s") from None
    finally:
        _terminate(child)
    if child.returncode:
        raise AreaError(f"{area}: ended with {child.returncode}")
    return Section.from_json(json.loads(answer))


def _terminate(child: subprocess.Popen[str]) -> None:
    """Interrupt the area so that it stops its children, then kill the rest of its group; a second interrupt kills at once."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"It did not exit within {_END_SECONDS} s of the interrupt")
    finally:
        # Its children are in its process group unless they have created their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


# All areas.


def write(section: Section) -> None:
    """Put a section in the place of its area's: all of it into the results and tables of the runs, its ratios into the tree."""
    runs = Results.load(RUNS / RESULTS)
    runs.replace(section)
    runs.save(RUNS / RESULTS)
    (RUNS / TABLES).write_text(runs.tables(AREAS))
    ratios = Results.load(RATIOS)
    ratios.replace(ratios_of(section))
    ratios.save(RATIOS)
    (DOCS / PAGE).write_text(ratios.page(AREAS))
    plots.write(ratios.sections(AREAS), DOCS / IMAGES)


def measure_all(areas: Sequence[str], *, quick: bool) -> int:
    """Measure *areas* one after the other and show each result, with *quick* without writing it; return the exit code."""
    failed = []
    for area in areas:
        try:
            section = measure_area(area, quick=quick)
        except AreaError as error:
            say(str(error))
            failed.append(area)
            continue
        if not quick:
            write(section)
        print(terminal(section), flush=True)
    if failed:
        say(f"Not measured: {', '.join(failed)}{'' if quick else '. Their sections are unchanged.'}")
    return 1 if failed else 0


def main() -> int:
    """Return 0 if all areas were measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; all of them")
    parser.add_argument(
        "--quick", action="store_true", help="show ratios to peers in seconds; no engine, nothing is written"
    )
    parser.add_argument("--be", choices=AREAS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # An area's children must stop on SIGTERM too; and a shell's background job ignores SIGINT by default.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if options.be:
        # Libraries print to stdout (vLLM logs there); the result has a descriptor of its own.
        with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answer:
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            run_area(options.be, answer, quick=options.quick)
        return 0
    known = QUICK if options.quick else AREAS
    wrong = sorted(set(options.areas) - set(known))
    if wrong:
        parser.error(f"no such area: {', '.join(wrong)}; there are {', '.join(known)}")
    areas = options.areas or known
    try:
        return measure_all(areas, quick=options.quick)
    except KeyboardInterrupt:
        say("Interrupted; finished areas are written.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
