"""NIXL's agents on a machine of two cores: each has a thread that polls without a pause, and so keeps a core busy while idle."""

from __future__ import annotations

import functools
import sys

_PAUSE_MICROSECONDS = 1000


@functools.cache
def pause_progress_threads() -> None:
    """Let the progress threads of agents that are made from now on sleep between two polls; NIXL's Python API fixes the pause at 0."""
    from nixl._api import nixl_agent  # noqa: PLC0415  (a second to import)

    # nixl._api re-exports the API of whichever CUDA build is installed.
    bindings = sys.modules[nixl_agent.__module__].nixlBind
    base = bindings.nixlAgentConfig

    class AgentConfig(base):  # type: ignore[misc, valid-type]
        """The agent's configuration, whose pause cannot be set to 0."""

        @property
        def pthrDelay(self) -> int:  # noqa: N802  (NIXL's name)
            return int(base.pthrDelay.__get__(self))

        @pthrDelay.setter
        def pthrDelay(self, value: int) -> None:  # noqa: N802
            base.pthrDelay.__set__(self, max(value, _PAUSE_MICROSECONDS))

    bindings.nixlAgentConfig = AgentConfig
