"""``python -m demo.ec [--keep]``: what `make demo-ec` runs."""

from __future__ import annotations

import sys

from demo.common.command import run
from demo.common.console import say
from demo.ec.stack import running_ec_stack
from demo.ec.story import tell


def _play(keep: bool) -> None:
    with running_ec_stack(say) as stack:
        tell(stack, keep=keep)


if __name__ == "__main__":
    sys.exit(run("make demo-ec", "Penstock at work on an encoder and a language model.", _play))
