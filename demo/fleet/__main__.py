"""The fleet demo, ``make demo-fleet``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from demo.common.command import run
from demo.common.console import say
from demo.fleet.stack import Stack
from demo.fleet.story import play


def _play(keep: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True) as directory:
        stack = Stack(Path(directory))
        try:
            play(stack)
            if keep:
                say(f"\nEverything runs until Ctrl-C. Try: {stack.hint()}")
                stack.wait()
        finally:
            stack.stop()


if __name__ == "__main__":
    sys.exit(run("demo.fleet", __doc__ or "", _play))
