"""How an agent's answers grow with engines, peers, journal and uptime, and whether their bounds hold: ``make scale``.

Real agents, and engines that send to them over gRPC; at each point of a variable the agent is asked everything. All parts take
about ten minutes on two cores (uptime five, journal four, the others half a minute each); each that is finished is written into
benchmarks/scale.json and docs/scale.md, beside what was measured of the others before.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness.document import Results, terminal
from benchmarks.harness.machine import circumstances, load
from benchmarks.scale.document import inserted
from benchmarks.scale.variables import VARIABLES, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = _ROOT / "benchmarks" / "scale.json"
DOCUMENT: Final = _ROOT / "docs" / "scale.md"


def write_documents(results: Results) -> None:
    """Write the generated part of the document."""
    sections = results.sections(tuple(VARIABLES))
    DOCUMENT.write_text(inserted(DOCUMENT.read_text(), sections))


def run(names: Sequence[str]) -> None:
    """Measure the variables of these *names* one after the other; write each."""
    for name in names:
        began, before = time.monotonic(), load()

        def say(text: str, name: str = name, began: float = began) -> None:
            print(f"[{name} {time.monotonic() - began:4.0f} s] {text}", file=sys.stderr, flush=True)

        section = replace(measure(name, say), circumstances=circumstances(before))
        say("done")
        results = Results.load(RESULTS)
        results.replace(section)
        results.save(RESULTS)
        write_documents(results)
        print(terminal(section), flush=True)


def main() -> int:
    """Return 0 when all are measured, 130 after an interrupt."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(VARIABLES)}; all of them without one"
    )
    parser.add_argument("--write", action="store_true", help="measure nothing; write the document again")
    options = parser.parse_args()
    # What was started must end on SIGTERM, too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    wrong = sorted(set(options.parts) - set(VARIABLES))
    if wrong:
        parser.error(f"no such part: {', '.join(wrong)}; there are {', '.join(VARIABLES)}")
    if options.write:
        write_documents(Results.load(RESULTS))
        return 0
    try:
        run(options.parts or tuple(VARIABLES))
    except KeyboardInterrupt:
        print("Interrupted; finished parts are written.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
