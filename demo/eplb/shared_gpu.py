"""Several ranks on one GPU, which NCCL refuses: vLLM's groups get the communicator that uses torch.distributed alone."""

from __future__ import annotations

from typing import Any

from vllm.platforms import current_platform

_PLAIN = "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"


def install() -> None:
    """Replace the platform's communicator in this whole process."""

    def get_device_communicator_cls(_cls: type[Any]) -> str:
        return _PLAIN

    type(current_platform).get_device_communicator_cls = classmethod(get_device_communicator_cls)
