"""All benchmarks, beside their peers, and the document that tells of them: ``make bench``, ``make bench-quick``.

Each area runs in a process of its own, in a session of its own: a Ctrl-C reaches this process, which ends the area once and waits
until it has taken down what it started. What is finished is written; an area that fails does not keep the next from running.
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
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness import ratios
from benchmarks.harness.document import Results, terminal
from benchmarks.harness.interleave import Run
from benchmarks.harness.machine import circumstances, load
from benchmarks.harness.results import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO

AREAS: Final = ("emit", "step", "engine", "agent", "scrape", "policy", "ec")
"""In the document's order; each is a module with ``measure(run) -> Section``."""

QUICK: Final = ("emit", "agent", "scrape", "policy")
"""Those whose ratios tell something in seconds; one that measures another set of rows when it is quick says so itself."""

_HERE: Final = Path(__file__).resolve().parent
RESULTS: Final = _HERE / "results.json"
RATIOS: Final = _HERE / "ratios.json"
DOCUMENT: Final = _HERE.parent / "docs" / "benchmarks.md"

_AREA_SECONDS: Final = 15 * 60
_END_SECONDS: Final = 180
"""Six engines are asked to end one after the other, and each may take twenty seconds."""
_TRIES: Final = 3


class AreaError(RuntimeError):
    """An area found nothing; its own error is above."""


def say(text: str) -> None:
    """Show progress, beside whatever is redirected."""
    print(text, file=sys.stderr, flush=True)


# One area, in its own process.


def be(area: str, answer: IO[str], *, quick: bool) -> None:
    """Measure one area and write its section to *answer*."""
    measure: Callable[[Run], Section] = import_module(f"benchmarks.areas.{area}").measure
    began, before = time.monotonic(), load()

    def told(text: str) -> None:
        say(f"[{area} {time.monotonic() - began:4.0f} s] {text}")

    found = measure(Run(told, quick))
    section = Section(found.area, found.title, found.notes, found.rows, circumstances(before))
    json.dump(section.as_json(), answer)


def measured(area: str, *, quick: bool = False) -> Section:
    """Run one area to its end.

    Raises:
        AreaError: it failed, or took too long.

    """
    command = [sys.executable, "-m", "benchmarks", "--be", area, *(["--quick"] if quick else [])]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        answer, _ = child.communicate(timeout=_AREA_SECONDS)
    except subprocess.TimeoutExpired:
        raise AreaError(f"{area}: not done after {_AREA_SECONDS} s") from None
    finally:
        _end(child)
    if child.returncode:
        raise AreaError(f"{area}: ended with {child.returncode}")
    return Section.from_json(json.loads(answer))


def _end(child: subprocess.Popen[str]) -> None:
    """Have the area take down what it has started; what remains is killed, at once if we are asked a second time."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"It did not end within {_END_SECONDS} s of being asked")
    finally:
        # Its session's other processes are in its group, unless they have one of their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


# The two commands.


def full(areas: Sequence[str]) -> int:
    """Measure *areas* and write what was found, one after the other."""
    failed = []
    for area in areas:
        try:
            section = measured(area)
        except AreaError as error:
            say(str(error))
            failed.append(area)
            continue
        results = Results.load(RESULTS)
        results.replace(section)
        results.save(RESULTS)
        DOCUMENT.write_text(results.markdown(AREAS))
        print(terminal(section), flush=True)
    if failed:
        say(f"Not measured: {', '.join(failed)}. Their sections are as they were.")
    return 1 if failed else 0


def quick(areas: Sequence[str], *, update: bool) -> int:
    """Compare the ratios of *areas* with the stored ones, or store them."""
    stored = {key: each for key, each in ratios.load(RATIOS).items() if key.partition(":")[0] in areas}
    found: dict[str, ratios.Stored] = {}
    failed = []
    for area in areas:
        try:
            found |= _usual(area) if update else _quick_area(area, stored)
        except AreaError as error:
            say(str(error))
            failed.append(area)
    if failed:
        say(f"Not measured: {', '.join(failed)}")
    # What could not be measured keeps its ratios, and is not told a second time.
    stored = {key: each for key, each in stored.items() if key.partition(":")[0] not in failed}
    if update:
        others = {key: each for key, each in ratios.load(RATIOS).items() if key not in stored}
        ratios.save(RATIOS, others | found)
        say(f"{len(found)} ratios are written to {RATIOS}")
        return 1 if failed else 0
    missing = ratios.unmatched(stored, found)
    worse = ratios.regressions(stored, found)
    for key in missing:
        say(f"{key}: not on both sides; if that is meant, make bench-quick UPDATE=1")
    for each in worse:
        say(f"WORSE {each}")
    if not missing and not worse and not failed:
        say(f"None of {len(found)} ratios is worse than {ratios.FACTOR:g} times the stored one")
    return 1 if failed or missing or worse else 0


def _usual(area: str) -> dict[str, ratios.Stored]:
    """Return the area's ratios as they are to be stored."""
    runs = []
    for _ in range(_TRIES):
        section = measured(area, quick=True)
        print(terminal(section), flush=True)
        runs.append(ratios.found_in([section]))
    return ratios.middle_of(runs)


def _quick_area(area: str, stored: dict[str, ratios.Stored]) -> dict[str, ratios.Stored]:
    """Return the area's ratios; as long as one of them is much worse, measure again and take the better ones."""
    found: dict[str, ratios.Stored] = {}
    for attempt in range(_TRIES):
        section = measured(area, quick=True)
        print(terminal(section), flush=True)
        found = ratios.better_of(found, ratios.found_in([section]))
        if not ratios.regressions(stored, found):
            break
        say(f"{area}: worse than stored, try {attempt + 1} of {_TRIES}")
    return found


def main() -> int:
    """Return 0 if all was measured, and with ``--quick`` nothing is grossly worse than it was."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; all of them")
    parser.add_argument("--quick", action="store_true", help="compare ratios with the stored ones; no engine")
    parser.add_argument("--update", action="store_true", help="with --quick: store the ratios")
    parser.add_argument("--be", choices=AREAS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # Whoever ends us, what an area has started has to go too; a shell's background job would ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if options.be:
        # What libraries print (vLLM logs to standard output) is not the answer.
        with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answer:
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            be(options.be, answer, quick=options.quick)
        return 0
    known = QUICK if options.quick else AREAS
    wrong = sorted(set(options.areas) - set(known))
    if wrong:
        parser.error(f"no such area: {', '.join(wrong)}; there are {', '.join(known)}")
    areas = options.areas or known
    try:
        return quick(areas, update=options.update) if options.quick else full(areas)
    except KeyboardInterrupt:
        say("Interrupted; what was finished is written.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
