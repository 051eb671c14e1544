"""What the three processes of a vLLM server have imported when it serves; for a fork server, whose forks fork.

EngineCore and workers are forks, as vLLM has it by default; only its CPU platform says ``spawn``, and is overruled here.
No plugin is loaded: each fork does that, with its own environment.

A process that waits for another's message sleeps at once, which vLLM does only a second after the last one; and a scheduler
whose requests all wait for a transfer or a reader steps a hundred times a second, not as often as it can. Both would take
the core that the test needs.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.engine import core

_NAMES = (
    "demo.common.vllm_server",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.idefics3",
    "transformers.models.llama",
    "transformers.models.idefics3",
)

for _name in _NAMES:
    import_module(_name)
with suppress(ImportError):  # until 0.28
    import_module("vllm.entrypoints.launchers.api_server.entry")

_STEP_SECONDS = 0.01
_original = CpuPlatform.check_and_update_config


def _check_and_update_config(_cls: type[CpuPlatform], vllm_config: object) -> None:
    _original(vllm_config)
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"


def _pause(seconds: float) -> None:
    time.sleep(max(seconds, _STEP_SECONDS))


CpuPlatform.check_and_update_config = classmethod(_check_and_update_config)
# Of ``busy_loop_s``, in seconds.
SpinCondition.__init__.__defaults__ = (0.001,)
# The loop of EngineCore sleeps 1 ms after a step without a token.
core.time = SimpleNamespace(**{**vars(time), "sleep": _pause})
