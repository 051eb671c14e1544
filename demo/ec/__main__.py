"""The encoder demo: ``make demo-ec``, ``python -m demo.ec [--keep]``."""

from __future__ import annotations

import sys

from demo.common.command import run
from demo.ec.stack import running_ec_stack
from demo.ec.story import play


def _play(keep: bool) -> None:
    with running_ec_stack() as stack:
        play(stack, keep=keep)


if __name__ == "__main__":
    sys.exit(
        run(
            "make demo-ec",
            "Run Penstock on an encoder and a language model: a transfer, a wait, failures, a policy.",
            _play,
        )
    )
