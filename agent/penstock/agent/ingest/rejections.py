"""What the agent's status tells of messages that were not taken."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class ContractViolations:
    """Messages that broke the contract, and streams of processes that another one keeps out, since the agent started."""

    count: int = 0
    last: str = ""
    last_unix_nano: int = 0

    def note(self, error: str) -> None:
        """Count one."""
        self.count, self.last, self.last_unix_nano = self.count + 1, error, time.time_ns()
