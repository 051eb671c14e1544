"""One source's stream: who sends, and what its handler has to look at besides the next message."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.agent.model import Source


class Ending(Enum):
    """Why the agent ends a stream."""

    REPLACED = "a newer stream of the same source took over"
    DRAINING = "the agent is stopping; connect again"


@dataclass(slots=True, eq=False)
class Stream:
    """A stream whose Hello was taken.

    Attributes:
        ending: set when the agent wants it to end.
        goodbye: the source said that nothing follows.
        wake: set when ``ending`` or the pause changed.

    """

    source: Source
    paused: bool = False
    ending: Ending | None = None
    goodbye: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, ending: Ending) -> None:
        """Ask the handler to end the stream after the message it has in hand."""
        self.ending = self.ending or ending
        self.wake.set()
