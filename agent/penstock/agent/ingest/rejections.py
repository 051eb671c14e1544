"""Refused messages, as the agent's status reports them."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class ContractViolations:
    """Messages that violate the contract and streams refused because another process holds the engine, since the start."""

    count: int = 0
    last: str = ""
    last_unix_nano: int = 0

    def note(self, error: str) -> None:
        """Count one refusal."""
        self.count, self.last, self.last_unix_nano = self.count + 1, error, time.time_ns()
