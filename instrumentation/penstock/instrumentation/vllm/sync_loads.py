"""Steps that load remote KV themselves and whose result is not in: until then whoever is scheduled may share blocks that fail."""

from __future__ import annotations

from collections import deque
from typing import Any


class SyncLoads:
    """The steps of one scheduler; on its thread."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._steps: deque[Any] = deque()

    def __bool__(self) -> bool:
        return bool(self._steps)

    def begins(self, request_id: str) -> None:
        """Note that a request got its blocks for a load, in the step that is being put together."""
        self._begun.add(request_id)

    def parked(self, request_id: str) -> None:
        """Note that it is the request that waits for it, not the step."""
        self._begun.discard(request_id)

    def scheduled(self, output: Any) -> None:
        """Expect the result of the step with that *output*, if it loads something."""
        if self._begun:
            self._begun.clear()
            self._steps.append(output)

    def executed(self, output: Any) -> None:
        """Note that the result of the step with that *output* is in. Results come in the order in which steps were scheduled."""
        if any(step is output for step in self._steps):
            while self._steps.popleft() is not output:
                pass
