"""The items that the workers load in each step, and the requests that compute on them before the result is in.

With async scheduling the next step is scheduled before a load's result is there: its requests may find the item in vLLM's
encoder cache, vLLM may evict the item, and a request that used it may be preempted or end. So what is needed to find all that
is tainted is noted while the steps are under way, and forgotten when their results are in.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.ec.protocol import ExternalItem
from penstock.instrumentation.vllm.recovery import FreedBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class CacheAnswer:
    """A connector's answer about an item, and when it was asked (wall clock, ns)."""

    found: bool
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class EcStepLoads:
    """The items that the workers load in one step.

    Attributes:
        metadata: the connector's, of that step.
        users: by item, the requests that compute on it and the first token that does.
        freed: blocks of requests that were preempted or ended since.

    """

    metadata: Any
    users: dict[str, dict[str, int]] = field(default_factory=dict)
    freed: list[FreedBlocks] = field(default_factory=list)


class UnconfirmedEcLoads:
    """The loads of one scheduler whose result is not in; on its thread."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._answers: dict[str, CacheAnswer] = {}
        self._to_load: dict[str, ExternalItem] = {}
        self._encodes: dict[str, str] = {}
        self._pending: deque[EcStepLoads] = deque()

    # While a step is scheduled

    def on_answer(self, item: str, answer: CacheAnswer) -> None:
        """Record the connector's last answer about *item*: vLLM loads it if that was "yes", and encodes it if not."""
        self._answers[item] = answer

    def on_allocated(self, request: Any, index: int) -> CacheAnswer | None:
        """Record that vLLM made room for an item; return the connector's answer about it."""
        feature = request.mm_features[index]
        answer = self._answers.get(feature.identifier)
        if answer is None or not answer.found:
            self._encodes[feature.identifier] = feature.modality
        else:
            self._to_load.setdefault(
                feature.identifier,
                ExternalItem(
                    feature.identifier,
                    request.get_num_encoder_embeds(index),
                    feature.modality,
                    request.request_id,
                ),
            )
        return answer

    def encodes(self, item: str) -> bool:
        """Return whether *item* is to be encoded here in this step: a connector that is asked again may have it by now."""
        return item in self._encodes

    def collect(self) -> tuple[tuple[ExternalItem, ...], dict[str, str]]:
        """Return what the step loads, and the modality of each item that it encodes here; the next begins."""
        items, encodes = tuple(self._to_load.values()), self._encodes
        self._to_load.clear()
        self._answers.clear()
        self._encodes = {}
        return items, encodes

    def on_planned(self, metadata: Any, items: Iterable[ExternalItem]) -> None:
        """Expect the result of the step with that *metadata*."""
        self._pending.append(EcStepLoads(metadata, {each.item: {} for each in items}))

    def after_schedule(self, output: Any) -> None:
        """Record the requests that compute on pending items in the step that was just scheduled."""
        if not self._pending:
            return
        cached = self._scheduler.encoder_cache_manager.cached
        for loads in self._pending:
            for item, users in loads.users.items():
                for request_id in cached.get(item, ()):
                    count = output.num_scheduled_tokens.get(request_id)
                    request = self._scheduler.requests.get(request_id)
                    if count is None or request is None:
                        continue
                    first = first_use(request, item, request.num_computed_tokens - count)
                    users[request_id] = min(first, users.get(request_id, first))

    @property
    def awaits_results(self) -> bool:
        """Whether the result of a step with loads is not in."""
        return bool(self._pending)

    def before_free(self, request: Any) -> None:
        """Record the blocks of a request that is about to lose them."""
        if self._pending:
            blocks = self._scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
            blocks_of_request = FreedBlocks(request.request_id, blocks)
            for loads in self._pending:
                loads.freed.append(blocks_of_request)

    # When its result is in

    def confirm(self, metadata: Any) -> EcStepLoads:
        """Return what is known about the step with that *metadata*, and forget it and those before it.

        Results come in the order in which the steps were scheduled.
        """
        if any(loads.metadata is metadata for loads in self._pending):
            while (loads := self._pending.popleft()).metadata is not metadata:
                pass
            return loads
        return EcStepLoads(metadata)


def first_use(request: Any, item: str, start: int) -> int:
    """Return the first token from *start* on that is computed from *item*."""
    return min(
        (
            max(feature.mm_position.offset, start)
            for feature in request.mm_features
            if feature.identifier == item and feature.mm_position.offset + feature.mm_position.length > start
        ),
        default=start,
    )


def ask_connector(connector_has: Any, item: str) -> CacheAnswer:
    """Ask by *connector_has* whether *item* is there."""
    start_ns = time.time_ns()
    found = bool(connector_has(item))
    return CacheAnswer(found, start_ns, time.time_ns())
