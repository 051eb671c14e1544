"""A pause between the polls of NIXL agents' progress threads, each of which otherwise keeps a core busy while idle."""

from __future__ import annotations

import functools
import sys

_PAUSE_MICROSECONDS = 1000


@functools.cache
def pause_progress_threads() -> None:
    """Make the progress threads of new agents sleep 1 ms between polls; NIXL's Python API fixes the pause at 0."""
    from nixl._api import nixl_agent  # noqa: PLC0415  (a second to import)

    # nixl._api re-exports the API of whichever CUDA build is installed.
    bindings = sys.modules[nixl_agent.__module__].nixlBind
    base = bindings.nixlAgentConfig

    class AgentConfig(base):  # type: ignore[misc, valid-type]
        """The agent's configuration with a minimum pause."""

        @property
        def pthrDelay(self) -> int:  # noqa: N802  (NIXL's name)
            return int(base.pthrDelay.__get__(self))

        @pthrDelay.setter
        def pthrDelay(self, value: int) -> None:  # noqa: N802
            base.pthrDelay.__set__(self, max(value, _PAUSE_MICROSECONDS))

    bindings.nixlAgentConfig = AgentConfig
