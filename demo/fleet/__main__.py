"""The fleet demo, ``make demo-fleet``."""

from __future__ import annotations

import argparse
import sys

from demo.common.command import run
from demo.common.console import keep_running
from demo.common.workspace import run_directory
from demo.fleet.choice import SOURCES, choose
from demo.fleet.stack import Stack
from demo.fleet.story import play


def _play(keep: bool, source: str) -> None:
    with run_directory() as (directory, parts):
        stack = Stack(directory, choose(source))
        parts.callback(stack.stop)
        play(stack)
        if keep:
            keep_running(stack.hints())


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
