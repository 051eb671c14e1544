"""The fleet demo, ``make demo-fleet``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from demo.common.command import run
from demo.common.console import say
from demo.fleet.choice import SOURCES, choose
from demo.fleet.stack import Stack
from demo.fleet.story import play


def _play(keep: bool, source: str) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True) as directory:
        stack = Stack(Path(directory), choose(source))
        try:
            play(stack)
            if keep:
                say("\nEverything runs until Ctrl-C. Try:")
                for hint in stack.hints():
                    say(f"  {hint}")
                stack.wait()
        finally:
            stack.stop()


if __name__ == "__main__":
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--source",
        choices=SOURCES,
        default="",
        help="where the policies are; kubernetes where `make kube-apiserver` has built an API server, else nats",
    )
    sys.exit(
        run(
            "make demo-fleet",
            "Run three agents and two relays: one change, and a roll-out that aborts itself.",
            _play,
            options,
        )
    )
