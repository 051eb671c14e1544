"""What the page says of its server."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.agent.views.command_lines import PROGRAM, hinted
from penstock.proto import __version__

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class PageSource:
    """Whose page it is.

    Attributes:
        kind: ``agent``, ``relay`` or ``bundle``; the time of a bundle stands still.
        name: for people: the pod, the host or the file.
        start_time: milliseconds since 1970.
        clock: returns the present, seconds since the epoch.
        program: the beginning of a command line of agentctl that reaches this server.
        since: seconds before the present that the verdict is about; None for those of ``agentctl diagnose``.

    """

    kind: str
    name: str
    version: str = __version__
    start_time: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    clock: Callable[[], float] = time.time
    program: str = PROGRAM
    since: float | None = None

    def hinted(self, values: bytes) -> bytes:
        """Return JSON with the program in its command lines."""
        if self.program == PROGRAM:
            return values
        return hinted(values.decode(), json.dumps(self.program)[1:-1]).encode()
