"""What ``make demo`` and ``make demo-ec`` have in common: options, signals, exit codes."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from demo.common.console import say
from demo.common.processes import ChildError
from demo.steps import StepError

if TYPE_CHECKING:
    from collections.abc import Callable


def run(program: str, description: str, play: Callable[[bool], None]) -> int:
    """Parse the arguments, *play* the demo (told whether to stay up at its end), and return the exit code.

    Exit code 1 and a sentence if a step fails.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--keep", action="store_true", help="stay up for a look around, until Ctrl-C")
    keep = parser.parse_args().keep
    # Whoever ends us, the servers have to go too.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        play(keep)
    except (StepError, ChildError, RuntimeError, OSError, ValueError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("Stopped; nothing is left running.")
        return 130
    say("Done; nothing is left running.")
    return 0


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
