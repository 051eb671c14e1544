"""Counts the instructions of the gates and compares them with the stored counts: ``make bench-gate``.

Where none are stored for this build of the interpreter, they are compared with those of the product's code at another commit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.gate.counting import ROOT, GateError, build_name, count, extract, processor
from benchmarks.gate.jobs import JOBS
from benchmarks.gate.stored import Verdict, load, save, updated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STORE: Final = ROOT / "benchmarks" / "instructions.json"
_INTENDED: Final = "If that is intended, store it: make bench-gate UPDATE=1"
_BEFORE: Final = "HEAD^"


def judge(expected: Mapping[str, int], found: Mapping[str, int], than: str) -> int:
    """Print each gate beside *expected*, which is of *than*; return the exit code."""
    verdicts = [Verdict(gate, expected[gate], found[gate]) for gate in found]
    for each in verdicts:
        print(each)
    for each in verdicts:
        if each.worse:
            print(f"REFUSED {each.gate}: {each.percent:.1f} % more instructions than {than}. {_INTENDED}")
        elif each.better:
            print(f"{each.gate}: {-each.percent:.1f} % fewer instructions than {than}. {_INTENDED}")
    return 1 if any(each.worse for each in verdicts) else 0


def gate(gates: Sequence[str], *, update: bool, base: str) -> int:
    """Count *gates* and judge or store them; return the exit code.

    Raises:
        GateError: one of them does not run.

    """
    build, here = build_name(), processor()
    store = load(STORE)
    stored = store.get(build, {})
    found = count(gates)
    if update:
        day = datetime.now(UTC).date().isoformat()
        save(STORE, {**store, build: updated(stored, found, here, day)})
        print(
            f"Stored for {build}, on {here}: {', '.join(f'{name} {value:,}' for name, value in found.items())}"
        )
        return 0
    if not base and found.keys() <= stored.keys():
        refused = judge({name: stored[name].instructions for name in found}, found, "stored")
        new = [name for name in found if here not in stored[name].run_on]
        if new and not refused:
            print(f"Not yet noted as run on {here}: {', '.join(new)}. make bench-gate UPDATE=1 notes it")
        return refused
    if not base:
        print(f"No counts are stored for {build}; make bench-gate UPDATE=1 stores them")
    base = base or _BEFORE
    with tempfile.TemporaryDirectory(prefix="penstock-gate-") as code:
        try:
            extract(base, Path(code))
            expected = count(gates, Path(code))
        except GateError as error:
            print(f"Not judged beside {base}: {error}")
            return 0
    return judge(expected, found, f"at {base}")


def main() -> int:
    """Return 0 if no gate is refused, or none could be judged here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("gates", nargs="*", metavar="GATE", help=f"of {', '.join(JOBS)}; all of them")
    parser.add_argument(
        "--update", action="store_true", help="store the counts, and this processor beside them"
    )
    parser.add_argument("--base", default="", help="compare with the product's code at this commit")
    options = parser.parse_args()
    wrong = sorted(set(options.gates) - set(JOBS))
    if wrong:
        parser.error(f"no such gate: {', '.join(wrong)}; there are {', '.join(JOBS)}")
    if shutil.which("valgrind") is None and os.getuid() != 0:
        print(
            "Not judged: valgrind is not installed; on Debian or Ubuntu: sudo apt-get install valgrind strace"
        )
        return 0
    try:
        return gate(options.gates or list(JOBS), update=options.update, base=options.base)
    except GateError as error:
        print(f"Not counted: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
