"""vLLM's API server with production's defaults, which the CPU platform otherwise overrules.

``python -m tests.support.engine.forced_server`` takes the API server's arguments. ``FORCED_VARIANT`` says what is
forced: ``async_fork`` (AsyncScheduler, workers by fork) or ``uni`` (scheduler and worker in one process).
The platform's own check runs first; then what it overruled is put back. It runs at import, so that a
spawned child, which imports its parent's main module, has it too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vllm.platforms.cpu import CpuPlatform

from demo.common import vllm_server

if TYPE_CHECKING:
    from collections.abc import Callable


def _async_fork(config: Any) -> None:
    config.scheduler_config.async_scheduling = True
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"


def _uni(config: Any) -> None:
    config.scheduler_config.async_scheduling = True
    config.parallel_config.distributed_executor_backend = "uni"


_VARIANTS: dict[str, Callable[[Any], None]] = {"async_fork": _async_fork, "uni": _uni}


def _force(variant: str) -> None:
    adjust = _VARIANTS[variant]
    original = CpuPlatform.check_and_update_config

    def check_and_update_config(_cls: type[CpuPlatform], vllm_config: Any) -> None:
        original(vllm_config)
        adjust(vllm_config)

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


_force(os.environ["FORCED_VARIANT"])

if __name__ == "__main__":
    vllm_server.main()
