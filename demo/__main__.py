"""``python -m demo [--keep]``: what `make demo` runs. Exit code 1 and a sentence if a step fails."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import NoReturn

from demo.processes import ChildError
from demo.stack import running_stack
from demo.steps import StepError
from demo.story import say, tell


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="make demo", description="Penstock at work on two real vLLM servers."
    )
    parser.add_argument("--keep", action="store_true", help="stay up for a look around, until Ctrl-C")
    keep = parser.parse_args().keep
    # Whoever ends us, the servers have to go too.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        with running_stack(say) as stack:
            tell(stack, keep=keep)
    except (StepError, ChildError, RuntimeError, OSError, ValueError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("Stopped; nothing is left running.")
        return 130
    say("Done; nothing is left running.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
