"""vLLM's API server, at ease on a machine of two cores.

``python -m demo.common.vllm_server`` takes the API server's arguments. Some constants of vLLM and NIXL suppose
that every process has a core of its own; on two cores they turn milliseconds into seconds. They
are set at import, so that a spawned child, which imports its parent's main module, has them too.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm.distributed.device_communicators import shm_broadcast

from demo.common.nixl_poll_pause import pause_progress_threads

_RECHECK_MILLISECONDS = 5
_SPIN_SECONDS = 0.002


def _wait_for_messages_politely() -> None:
    """Let EngineCore and workers wait for each other's messages without taking the core from the other.

    A reader spins for a second after each message; then it sleeps until somebody rings. The bell is a
    PUB socket that drops a ring while the one before is still on its way, which on a busy machine happens
    often; the fallback is to look every five seconds.
    """
    shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = _RECHECK_MILLISECONDS
    shm_broadcast.SpinCondition = functools.partial(shm_broadcast.SpinCondition, busy_loop_s=_SPIN_SECONDS)


def main() -> Any:
    """Run the API server."""
    # The `vllm` command asks for the metadata of a distribution named vllm, which the CPU build is not.
    from vllm.entrypoints.launchers.api_server import entry  # noqa: PLC0415

    return entry.main()


pause_progress_threads()
_wait_for_messages_politely()

if __name__ == "__main__":
    main()
