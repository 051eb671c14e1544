"""Dynamo's worker with polling intervals for two cores: ``python -m tests.support.engine.dynamo_worker`` takes its arguments."""

from __future__ import annotations

import importlib

# Sets them at import, in spawned children as well.
import demo.common.vllm_server  # noqa: F401

if __name__ == "__main__":
    importlib.import_module("dynamo.vllm.main").main()
