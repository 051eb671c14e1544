"""The command line of the demos: options, signals, exit codes."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from demo.common.console import say
from demo.common.processes import ChildError
from demo.common.steps import StepError

if TYPE_CHECKING:
    from collections.abc import Callable


def run(
    program: str, description: str, play: Callable[..., None], options: argparse.ArgumentParser | None = None
) -> int:
    """Parse the arguments, call *play* with ``keep`` and the values of *options* by name, and return the exit code.

    A failed step prints its error and returns 1; an interrupt returns 130.
    """
    parser = argparse.ArgumentParser(
        prog=program, description=description, parents=[options] if options else []
    )
    parser.add_argument("--keep", action="store_true", help="keep everything running until Ctrl-C")
    arguments = vars(parser.parse_args())
    # The servers must stop however this process is terminated.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        play(**arguments)
    except (StepError, ChildError, RuntimeError, OSError, ValueError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("Stopped; no process is left running.")
        return 130
    say("Done; no process is left running.")
    return 0


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
