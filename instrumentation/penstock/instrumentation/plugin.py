"""The entry point of ``vllm.general_plugins``: vLLM calls :func:`register` in each of its processes."""

from __future__ import annotations

import importlib
import os

from penstock.instrumentation.core import guard, settings
from penstock.instrumentation.runtime import runtime


def register() -> None:
    """Install the hooks if ``PENSTOCK_ENDPOINT`` is set. Idempotent; never raises.

    No thread, no channel and no import of grpc: those come with the first entry.
    """
    with guard("plugin.register"):
        if runtime.settings is not None:
            return
        found = settings.load(os.environ)
        if found is None:
            return
        runtime.configure(found)
        importlib.import_module("penstock.instrumentation.vllm.install").install()
