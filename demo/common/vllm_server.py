"""vLLM's API server with polling intervals for two cores.

``python -m demo.common.vllm_server`` takes the API server's arguments. Some constants of vLLM and NIXL assume a core for each
process; on two cores they turn milliseconds into seconds. They are set at import, so that a spawned child, which imports its
parent's main module, has them too.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm.distributed.device_communicators import shm_broadcast

from demo.common.nixl_poll_pause import pause_progress_threads

_RECHECK_MILLISECONDS = 5
_SPIN_SECONDS = 0.002


def _shorten_spinning() -> None:
    """Make EngineCore and workers yield the core while they wait for each other's messages.

    vLLM's reader spins for a second after each message, then sleeps until a notification. The PUB socket of
    notifications drops one while another is in flight, often so on a busy machine; the fallback is a poll
    every five seconds.
    """
    shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = _RECHECK_MILLISECONDS
    shm_broadcast.SpinCondition = functools.partial(shm_broadcast.SpinCondition, busy_loop_s=_SPIN_SECONDS)


def main() -> Any:
    """Run the API server."""
    # The `vllm` command asks for the metadata of a distribution named vllm, which the CPU build is not.
    from vllm.entrypoints.launchers.api_server import entry  # noqa: PLC0415

    return entry.main()


pause_progress_threads()
_shorten_spinning()

if __name__ == "__main__":
    main()
