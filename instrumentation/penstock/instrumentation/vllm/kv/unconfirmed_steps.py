"""Steps that load remote KV themselves and whose result is not in: until then whoever is scheduled may share blocks that fail.

vLLM puts such blocks into the prefix cache at once. So what a request leaves there that is preempted or ends meanwhile is noted too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.recovery import FreedBlocks

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class _Step:
    output: Any
    ghosts: list[FreedBlocks] = field(default_factory=list)


class UnconfirmedSteps:
    """The steps of one scheduler; on its thread."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._begun: set[str] = set()
        self._steps: deque[_Step] = deque()

    def __bool__(self) -> bool:
        return bool(self._steps)

    @property
    def ghosts(self) -> Sequence[FreedBlocks]:
        """Those who have lost their blocks since the oldest of the steps was scheduled, whose result comes first."""
        return self._steps[0].ghosts if self._steps else ()

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
            self._steps.append(_Step(output))

    def leaving(self, request: Any) -> None:
        """Note the blocks of a request that is about to lose them."""
        if self._steps:
            blocks = self._scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
            ghost = FreedBlocks(request.request_id, blocks)
            for step in self._steps:
                step.ghosts.append(ghost)

    def executed(self, output: Any) -> None:
        """Note that the result of the step with that *output* is in. Results come in the order in which steps were scheduled."""
        if any(step.output is output for step in self._steps):
            while self._steps.popleft().output is not output:
                pass
