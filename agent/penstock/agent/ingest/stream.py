"""The stream of one source, and the events that its handler waits for besides messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeAlias

    import grpc
    from penstock.agent.model import Source
    from penstock.agent.sources import Ownership

    Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]


class Ending(Enum):
    """Why the agent ends a stream."""

    REPLACED = "a newer stream of the same source took over"
    OUSTED = "the process that held this engine before is connected again; give each server of the pod a PENSTOCK_SERVER of its own"
    DRAINING = "the agent is stopping; connect again"


@dataclass(slots=True, eq=False)
class SourceStream:
    """A stream after its Hello.

    Attributes:
        context: the call.
        hold: of an EngineCore: that it speaks for its engine.
        ending: set when the agent wants it to end.
        goodbye: the source said that nothing follows.
        paused: what it was told last.
        seconds_out: for how long it was told last that it is out of rotation, at *told_at* of the monotonic clock.
        refused: it was ended with an error of its own.
        greeted: its watermark is read, and the acknowledgement of the Hello is next.
        turn: held while an acknowledgement is written: gRPC takes one message at a time.

    """

    source: Source
    context: Context
    hold: Ownership | None = None
    paused: bool = False
    seconds_out: int = 0
    told_at: float = 0.0
    ending: Ending | None = None
    goodbye: bool = False
    refused: bool = False
    greeted: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    # The handler's task while it waits for the next message.
    _reader: asyncio.Task[object] | None = None

    def end(self, ending: Ending) -> None:
        """End the stream after its current message."""
        self.ending = self.ending or ending
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    async def next(self) -> bytes | None:
        """Return the next message; None after the sender's end or :meth:`end`."""
        if self.ending is not None:
            return None
        handler = self._reader = asyncio.current_task()
        try:
            body = await self.context.read()
        except asyncio.CancelledError:
            # By end, or by gRPC because the call is over, or by both.
            if self.ending is None or handler is None or handler.uncancel():
                raise
            return None
        finally:
            self._reader = None
        return body if isinstance(body, bytes) else None
