"""The installed commands, and ``python -m penstock.agent``; the base install lacks what they need.

Only the standard library is imported here.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn

from penstock.proto.version import DISTRIBUTION

_WRONG_USE = 2


def agent() -> NoReturn:
    """Run ``penstock-agent``."""
    _run("penstock-agent", "penstock.agent.daemon.main")


def relay() -> NoReturn:
    """Run ``penstock-relay``."""
    _run("penstock-relay", "penstock.agent.relay.main")


def agentctl() -> NoReturn:
    """Run ``agentctl``."""
    _run("agentctl", "penstock.agent.ctl.main", quick=True)


def kubectl_penstock() -> NoReturn:
    """Run ``kubectl penstock``."""
    _run("kubectl penstock", "penstock.agent.ctl.main", "kubectl_plugin", quick=True)


def kubectl_complete_penstock() -> NoReturn:
    """Print completions of ``kubectl penstock``; kubectl runs this."""
    _run("kubectl penstock", "penstock.agent.ctl.main", "kubectl_complete", quick=True)


def _run(program: str, module: str, entry: str = "main", *, quick: bool = False) -> NoReturn:
    """Run *entry* of *module*; a package that is not installed is one sentence, whenever it is missed.

    Taking the interpreter apart takes a command as long as asking the agent: *quick* leaves that to the kernel.
    """
    code = 0
    # gRPC reads it when it is imported; its errors are sentences of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        getattr(import_module(module), entry)()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "penstock"):
            raise
        sys.stderr.write(
            f"{program}: {missing} is not installed: only the engine's part of Penstock is here; "
            f"install the rest with: pip install '{DISTRIBUTION}[agent]'\n"
        )
        code = _WRONG_USE
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        code = ended.code
    if quick:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    agent()
