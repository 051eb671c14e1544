"""What a process of vLLM does at its start about plugins, by vLLM's own code, without the rest of vLLM.

A program: ``load_plugins.py DIRECTORY_OF_VLLM``; runs in any Python. It ends with 0 if vLLM would start, and prints as
JSON whether Penstock installs its hooks, what it logged, and where gRPC and protobuf come from.
"""

import importlib.util
import json
import logging
import sys
import types

# A package without vLLM's own __init__, which imports torch.
vllm = types.ModuleType("vllm")
vllm.__path__ = [sys.argv[1]]
sys.modules["vllm"] = vllm

installed = []
hooks = types.ModuleType("penstock.instrumentation.vllm.install")
hooks.install = lambda: installed.append(True)  # type: ignore[attr-defined]
sys.modules[hooks.__name__] = hooks


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line, and the error that it has."""
        error = record.exc_info[1] if record.exc_info else None
        self.lines.append(f"{record.getMessage()}{f': {error!r}' if error else ''}")


kept = Lines()
logging.getLogger().addHandler(kept)

from vllm.plugins import load_general_plugins  # noqa: E402

load_general_plugins()


def place(module: str) -> str:
    """Return where a module would come from; empty if it is missing."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return ""
    return str(found.origin) if found is not None else ""


answer = {
    "hooked": bool(installed),
    "runtime": place("penstock.instrumentation.runtime"),
    "log": kept.lines,
    "grpc": place("grpc"),
    "protobuf": place("google.protobuf"),
    "path": sys.path,
}
sys.stdout.write(json.dumps(answer))
