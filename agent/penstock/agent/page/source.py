"""What the page says of its server."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from penstock.proto import __version__


@dataclass(frozen=True, slots=True)
class PageSource:
    """Whose page it is.

    Attributes:
        kind: ``agent`` or ``relay``.
        name: for people: the pod or the host.
        start_time: milliseconds since 1970.

    """

    kind: str
    name: str
    version: str = __version__
    start_time: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
