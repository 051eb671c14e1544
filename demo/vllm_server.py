"""vLLM's API server, at ease on a machine of two cores.

``python -m demo.vllm_server`` takes the API server's arguments. Two constants of vLLM and NIXL suppose
that every process has a core of its own; on two cores they turn milliseconds into seconds. Both
are set at import, so that a spawned child, which imports its parent's main module, has them too.
"""

from __future__ import annotations

import sys
from typing import Any

from nixl._api import nixl_agent
from vllm.distributed.device_communicators import shm_broadcast

_PROGRESS_PAUSE_MICROSECONDS = 1000
_RECHECK_MILLISECONDS = 20


def _pause_progress_thread() -> None:
    """Let NIXL's progress thread sleep between two polls; its Python API fixes the pause at 0."""
    # nixl._api re-exports the API of whichever CUDA build is installed.
    bindings = sys.modules[nixl_agent.__module__].nixlBind
    base = bindings.nixlAgentConfig

    class AgentConfig(base):  # type: ignore[misc]
        """The agent's configuration, whose pause cannot be set to 0."""

        @property
        def pthrDelay(self) -> int:  # noqa: N802  (NIXL's name)
            return int(base.pthrDelay.__get__(self))

        @pthrDelay.setter
        def pthrDelay(self, value: int) -> None:  # noqa: N802
            base.pthrDelay.__set__(self, max(value, _PROGRESS_PAUSE_MICROSECONDS))

    bindings.nixlAgentConfig = AgentConfig


def _recheck_messages_often() -> None:
    """Look for messages of EngineCore and worker to each other even if nobody rang.

    The bell is a PUB socket that drops a ring while the one before is still on its way, which on a busy
    machine happens often; the fallback is to look every five seconds.
    """
    shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = _RECHECK_MILLISECONDS


def main() -> Any:
    """Run the API server."""
    # The `vllm` command asks for the metadata of a distribution named vllm, which the CPU build is not.
    from vllm.entrypoints.launchers.api_server import entry  # noqa: PLC0415

    return entry.main()


_pause_progress_thread()
_recheck_messages_often()

if __name__ == "__main__":
    main()
