"""``kubectl penstock``: ``agentctl`` as a plugin of kubectl, and its completion."""

from __future__ import annotations

import os
import sys

from penstock.agent.ctl.main import cli
from penstock.agent.ctl.main import main as run
from penstock.agent.views.command_lines import PLUGIN

# Cobra's directive: offer no file names.
_NO_FILES = ":4"


def main() -> None:
    """Run ``kubectl penstock``."""
    run(PLUGIN)


def complete() -> None:
    """Print what completes the command line in the arguments, as ``kubectl`` asks: one a line, then a directive."""
    from click.shell_completion import ShellComplete  # noqa: PLC0415  (only completion needs it)

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    *before, incomplete = sys.argv[1:] or [""]
    shell = ShellComplete(cli, {}, PLUGIN, "_KUBECTL_PENSTOCK_COMPLETE")
    for item in shell.get_completions(before, incomplete):
        help_text = " ".join((item.help or "").split())
        sys.stdout.write(f"{item.value}\t{help_text}\n" if help_text else f"{item.value}\n")
    sys.stdout.write(f"{_NO_FILES}\n")
