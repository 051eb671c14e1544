"""Announced stops of servers: which sources have stopped, and are not lost. Pure, in memory, on one thread.

A process that vanishes without a goodbye has stopped if its server had said that it would stop, or says so before the
grace time of the loss is over: the connection of a killed process may end before the announcement is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.agent.model import Source

FRONT_END: Final = "api"
"""The process that announces; several API servers of one server share the name."""

SERVER_STOPPING: Final = "server_stopping"
"""The event that it announces with."""

# Above it, the server that announced first is forgotten.
_MAX_SERVERS = 1_024


class ServerStops:
    """The newest announcement of each server.

    It is about the processes that began before it: a later life of the server has a later beginning, by the same clock.
    """

    def __init__(self) -> None:
        self._stops: dict[str, int] = {}

    def announce(self, server: str, time_unix_nano: int, received_unix_nano: int) -> None:
        """Note that *server* stops.

        Args:
            server: of the engines' keys.
            time_unix_nano: the engine's clock. It counts as no later than the next argument, so that an announcement
                from the future does not excuse later lives.
            received_unix_nano: the agent's clock.

        """
        time = max(min(time_unix_nano, received_unix_nano), self._stops.pop(server, 0))
        self._stops[server] = time
        while len(self._stops) > _MAX_SERVERS:
            del self._stops[next(iter(self._stops))]

    def covers(self, source: Source) -> bool:
        """Return whether *source* is a process of a server that has announced its stop since the process began."""
        return 0 < source.start_time_unix_nano <= self._stops.get(source.key.server, 0)
