"""The items that the workers load in each step, the requests that compute on them before the result is in, and the way back.

With async scheduling the next step is scheduled before a load's result is there: its requests may find the item in vLLM's
encoder cache, vLLM may evict the item, and a request that used it may be preempted or end. So what is needed to find all that
is tainted is noted while the steps are under way, and forgotten when their results are in.

For an item that the workers could not load, the requests computed on a placeholder. All that was computed from it is tainted, and
all that was computed behind it; so is every request that shares such a block (``recovery/rewind.py``). Tainted blocks leave the
prefix cache before anything else, the item leaves vLLM's encoder cache, and each affected request goes back by vLLM's own
preemption or fails; what it has in flight is dropped.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.compat import (
    drop_output,
    drop_stale_output,
    errored_requests,
    forget_embeds,
    has_stale_output,
)
from penstock.instrumentation.vllm.ec.pending_items import features_beyond
from penstock.instrumentation.vllm.ec.protocol import ExternalItem
from penstock.instrumentation.vllm.recovery import UnconfirmedStep, UnconfirmedSteps, freed_by_name, rewind
from penstock.instrumentation.vllm.requests import Affected
from penstock.rules import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from penstock.instrumentation.vllm.ec.pending_items import PendingItems
    from penstock.rules import Decision

    Settle = Callable[[Any, Affected], Decision]

_RUNNING: Final = "RUNNING"

_MANAGER: Final = (
    "cached",
    "freeable",
    "freed",
    "num_free_slots",
    "request_cached_ids",
    "free_encoder_input",
)


@dataclass(frozen=True, slots=True)
class CacheAnswer:
    """A connector's answer about an item, and when it was asked (wall clock, ns)."""

    found: bool
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class EcStepLoads(UnconfirmedStep):
    """The items that the workers load in one step; its key is the connector's metadata.

    Attributes:
        users: by item, the requests that compute on it and the first token that does.

    """

    users: dict[str, dict[str, int]] = field(default_factory=dict)


class UnconfirmedEcLoads(UnconfirmedSteps[EcStepLoads]):
    """The steps of one scheduler in which the workers load items."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._answers: dict[str, CacheAnswer] = {}
        self._to_load: dict[str, ExternalItem] = {}
        self._encodes: dict[str, str] = {}

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
        self.steps.append(EcStepLoads(weakref.ref(metadata), users={each.item: {} for each in items}))

    def after_schedule(self, output: Any) -> None:
        """Record the requests that compute on pending items in the step that was just scheduled."""
        if not self.steps:
            return
        cached = self._scheduler.encoder_cache_manager.cached
        for loads in self.steps:
            for item, users in loads.users.items():
                for request_id in cached.get(item, ()):
                    count = output.num_scheduled_tokens.get(request_id)
                    request = self._scheduler.requests.get(request_id)
                    if count is None or request is None:
                        continue
                    first = first_use(request, item, request.num_computed_tokens - count)
                    users[request_id] = min(first, users.get(request_id, first))


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


class EcFailurePlanner:
    """Takes back what was computed from bad items, in one scheduler; on its thread, inside a step."""

    def __init__(self, scheduler: Any, pending: PendingItems, *, settle: Settle) -> None:
        """Act on *scheduler*; *settle* decides about one request and, where it must fail, lets vLLM fail it in this step."""
        self._scheduler = scheduler
        self._pending = pending
        self._settle = settle
        self._exports = rewind.exports(scheduler)
        self._forgotten: set[str] = set()

    def plan(self, loads: EcStepLoads, failed: Collection[str]) -> None:
        """Rewind or fail every request that the *failed* items of a step have spoiled."""
        seeds = _seeds(loads, failed)
        live = [each for each in self._scheduler.requests.values() if not each.is_finished()]
        freed = freed_by_name(loads.freed)
        holders = rewind.holders(self._scheduler, live)
        taint = rewind.spread(
            [*holders, *(each.holder(name) for name, each in freed.items())],
            frozenset(),
            rewind.block_sizes(self._scheduler),
            seeds
            | {name: seeds[each.request_id] for name, each in freed.items() if each.request_id in seeds},
        )
        # First of all, so that no request finds the tainted blocks again, whatever is decided.
        rewind.evict(self._scheduler, taint)
        freed_requests = {freed[name].request_id for name in taint.starts if name in freed}
        holding = {holder.request_id for holder in holders if any(holder.blocks)}
        for request in live:
            request_id = request.request_id
            start = taint.starts.get(request_id)
            computed = min(request.num_computed_tokens, request.num_tokens)
            tainted = start is not None and start < computed and request_id in holding
            # Preempted meanwhile: nothing is left to take back but the output of the tainted step, which vLLM would deliver.
            stale = (start is not None or request_id in freed_requests) and has_stale_output(request)
            if not tainted and not stale:
                continue
            kept = start if tainted and start is not None else computed
            items = tuple(
                dict.fromkeys(
                    feature.identifier
                    for feature in features_beyond(request, kept)
                    if feature.identifier in failed
                )
            )
            affected = Affected(
                request_id,
                kept,
                computed - kept,
                items,
                local_media=self._pending.has_media(request, kept, items),
                exported=tainted and request.status.name == _RUNNING and self._exports,
                held=tainted and request.status.name != _RUNNING,
                collateral=request_id not in seeds,
            )
            self._carry_out(request, self._settle(request, affected), tainted=tainted)
        self._forgotten.update(item for item in failed if forget(self._scheduler, item))

    def abandon(self, loads: EcStepLoads, failed: Collection[str]) -> None:
        """After an error in :meth:`plan`: fail every request that may have used a *failed* item. Some may fail needlessly.

        Only the guard reports the error: a failure is better than tokens that come from a placeholder.
        """
        users = _seeds(loads, failed).keys()
        live = [each for each in self._scheduler.requests.values() if not each.is_finished()]
        holders = rewind.holders(self._scheduler, live)
        tainted = [set[int]() for _ in rewind.block_sizes(self._scheduler)]
        for holder in (*holders, *(each.holder(each.request_id) for each in loads.freed)):
            if holder.request_id in users:
                for group, blocks in zip(tainted, holder.blocks, strict=True):
                    group.update(blocks)
                    group.discard(rewind.NO_BLOCK)
        rewind.evict(self._scheduler, rewind.Taint({}, frozenset(), tuple(map(frozenset, tainted))))
        for request, holder in zip(live, holders, strict=True):
            shares = any(
                not group.isdisjoint(blocks) for group, blocks in zip(tainted, holder.blocks, strict=True)
            )
            if shares or request.request_id in users:
                errored_requests(self._scheduler).add(request.request_id)
                drop_output(self._scheduler, request)
        self._forgotten.update(item for item in failed if forget(self._scheduler, item))

    def release(self, output: Any) -> None:
        """Have the workers drop the placeholders with the step of that *output*, which was just scheduled.

        vLLM leaves out what was allocated again in the same step, and its V2 runner does not encode what it still holds.
        """
        if self._forgotten:
            freed = output.free_encoder_mm_hashes
            output.free_encoder_mm_hashes = [*freed, *sorted(self._forgotten.difference(freed))]
            self._forgotten.clear()

    def _carry_out(self, request: Any, decision: Decision, *, tainted: bool) -> None:
        if decision.outcome is Outcome.FAILED:
            drop_output(self._scheduler, request)
        elif tainted:
            rewind.preempt(self._scheduler, request)
        else:
            drop_stale_output(self._scheduler, request)


def supports(scheduler: Any) -> bool:
    """Return whether items can be taken back in *scheduler*: its model uses vLLM's encoder cache, as this code knows it."""
    manager = scheduler.encoder_cache_manager
    return not scheduler.is_encoder_decoder and all(hasattr(manager, name) for name in _MANAGER)


def forget(scheduler: Any, item: str) -> bool:
    """Take *item* out of vLLM's encoder cache, with all references to it, as its own eviction does; tell whether it was there.

    The worker drops it with the next step, so that a step that is under way still finds it.
    """
    manager = scheduler.encoder_cache_manager
    for request_id in list(manager.cached.get(item, ())):
        request = scheduler.requests.get(request_id)
        if request is not None:
            for index in list(manager.get_cached_input_ids(request)):
                if request.mm_features[index].identifier == item:
                    manager.free_encoder_input(request, index)
    rows = manager.freeable.pop(item, None)
    if rows is None:
        return False
    del manager.cached[item]
    forget_embeds(manager, item)
    manager.num_free_slots += rows
    manager.freed.append(item)
    return True


def _seeds(loads: EcStepLoads, failed: Iterable[str]) -> dict[str, int]:
    """Return the requests that used a failed item, and the first token that did."""
    seeds: dict[str, int] = {}
    for item in failed:
        for request_id, start in loads.users.get(item, {}).items():
            seeds[request_id] = min(start, seeds.get(request_id, start))
    return seeds
