"""Steps with synchronous KV loads that the workers have not confirmed yet.

vLLM puts the blocks of such loads into the prefix cache at once. So the blocks of requests that are preempted or end before the result
is in are noted too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.recovery import FreedBlocks

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class UnconfirmedStep:
    """A step with its scheduler output, and the blocks freed since it was scheduled."""

    output: Any
    freed: list[FreedBlocks] = field(default_factory=list)


class UnconfirmedSteps:
    """The unconfirmed steps of one scheduler; on its thread. It is true while there is one.

    Attributes:
        allocated: requests that got blocks for a load in the step that is being put together; always the same set.
        steps: the oldest first; always the same deque.

    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.allocated: set[str] = set()
        self.steps: deque[UnconfirmedStep] = deque()

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def freed(self) -> Sequence[FreedBlocks]:
        """Blocks freed since the oldest of the steps was scheduled, whose result comes first."""
        return self.steps[0].freed if self.steps else ()

    def on_allocated(self, request_id: str) -> None:
        """Record that a request got its blocks for a load, in the step that is being put together."""
        self.allocated.add(request_id)

    def on_waiting(self, request_id: str) -> None:
        """Record that the request waits for its load, not the step."""
        self.allocated.discard(request_id)

    def after_schedule(self, output: Any) -> None:
        """Expect the result of the step with that *output*, if it loads something."""
        if self.allocated:
            self.allocated.clear()
            self.steps.append(UnconfirmedStep(output))

    def before_free(self, request: Any) -> None:
        """Record the blocks of a request that is about to lose them."""
        if self.steps:
            blocks = self._scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
            freed = FreedBlocks(request.request_id, blocks)
            for step in self.steps:
                step.freed.append(freed)

    def on_step_result(self, output: Any) -> None:
        """Confirm the step with that *output*. Results come in the order in which steps were scheduled."""
        if any(step.output is output for step in self.steps):
            while self.steps.popleft().output is not output:
                pass
