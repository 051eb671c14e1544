"""Fault drills of a consumer: which probes and transfers they hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.resilience import SLOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.resilience import Drill


class Rehearsal:
    """Asks *hit*, if it is set, which may happen at any time. Called on the fetcher's thread."""

    def __init__(self) -> None:
        self.hit: Callable[[int, str], Drill | None] | None = None

    def of_probe(self, address: str) -> Drill | None:
        """Return the drill by which a probe of this producer is to fail; None if none is."""
        return None if self.hit is None else self.hit(c.FAILURE_MODE_PROBE, address)

    def of_transfer(self, address: str) -> Drill | None:
        """Return the drill by which a transfer from this producer is to fail, or to be slow; None if none is."""
        if self.hit is None:
            return None
        return self.hit(c.FAILURE_MODE_TRANSFER, address) or self.hit(SLOW, address)
