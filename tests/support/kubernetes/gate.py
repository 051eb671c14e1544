"""A way to a server that a test shuts and opens."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self


class Gate:
    """Forwards TCP connections to a port of this machine while it is open.

    Attributes:
        port: where it listens, also after it was shut and opened.

    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Refuse connections, and break those that are open."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        beyond: asyncio.StreamWriter | None = None
        try:
            answers, beyond = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(_copy(reader, beyond), _copy(answers, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in (writer, beyond):
                if each is not None:
                    each.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof() if writer.can_write_eof() else writer.close()
