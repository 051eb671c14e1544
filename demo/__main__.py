"""The KV demo: ``make demo``, ``python -m demo [--keep]``."""

from __future__ import annotations

import sys

from demo.common.command import run
from demo.stack import running_stack
from demo.story import play


def _play(keep: bool) -> None:
    with running_stack() as stack:
        play(stack, keep=keep)


if __name__ == "__main__":
    sys.exit(
        run(
            "make demo",
            "Run Penstock on two real vLLM servers: a transfer, a failure, a policy, a recomputation.",
            _play,
        )
    )
