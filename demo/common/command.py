"""The command line of the demos: options, signals, last words, exit codes."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from demo.common import interrupts
from demo.common.console import say
from demo.common.processes import ChildError, children
from demo.common.progress import place
from demo.common.steps import StepError

if TYPE_CHECKING:
    from collections.abc import Callable

# What a shell adds to the number of a signal.
_BY_SIGNAL = 128


def run(
    program: str,
    description: str,
    play: Callable[..., None],
    options: argparse.ArgumentParser | None = None,
    *,
    keeps: bool = True,
) -> int:
    """Parse the arguments, call *play* with the values of *options* by name, and return the exit code.

    A failed step prints its last words and returns 1; a signal returns 128 and its number. No process is left running.

    Args:
        program: how the demo is called.
        description: what it shows.
        play: plays it; a demo that *keeps* takes ``keep``, too.
        options: more of them.
        keeps: whether it has ``--keep``.

    """
    parser = argparse.ArgumentParser(
        prog=program, description=description, parents=[options] if options else []
    )
    if keeps:
        parser.add_argument("--keep", action="store_true", help="keep everything running until Ctrl-C")
    arguments = vars(parser.parse_args())
    # The servers must stop however this process is terminated.
    interrupts.install()
    try:
        play(**arguments)
    except (StepError, ChildError, RuntimeError, OSError, ValueError) as error:
        notes = getattr(error, "__notes__", [])
        print("\n".join([f"\nThe demo failed {place()}", str(error), *notes]), file=sys.stderr)
        return 1
    except interrupts.InterruptedByError as signal:
        say("Stopped; no process is left running.")
        return _BY_SIGNAL + signal.number
    finally:
        for child in children():
            child.stop()
    say("Done; no process is left running.")
    return 0
