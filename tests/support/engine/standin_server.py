"""vLLM's API server for connectors that ask for an accelerator's handles even where they move host memory.

``python -m tests.support.engine.standin_server`` takes the API server's arguments. Mooncake's connectors move KV blocks of
the CPU build over TCP, but ask torch for the index of the current accelerator and for a CUDA event per save, and both
raise on a machine without one. The stand-ins say "device 0" and "done": right for a CPU, whose kernels have finished
when they return. It runs at import, so that a spawned worker, which imports its parent's main module, has them too.
"""

from __future__ import annotations

import torch

from demo.common import vllm_server


class _DoneEvent:
    """An event of a stream whose work is done when it has been queued."""

    def record(self, stream: object = None) -> None:
        """Mark what has been queued: nothing is left of it."""

    def synchronize(self) -> None:
        """Return at once."""


torch.accelerator.current_device_index = lambda: 0
torch.cuda.Event = _DoneEvent

if __name__ == "__main__":
    vllm_server.main()
