"""``python -m demo [--keep]``: what `make demo` runs."""

from __future__ import annotations

import sys

from demo.common.command import run
from demo.common.console import say
from demo.stack import running_stack
from demo.story import tell


def _play(keep: bool) -> None:
    with running_stack(say) as stack:
        tell(stack, keep=keep)


if __name__ == "__main__":
    sys.exit(run("make demo", "Penstock at work on two real vLLM servers.", _play))
