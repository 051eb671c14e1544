"""Requests that can neither have an item nor encode it here: vLLM would end the engine in the step that tries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.requests import Affected, Cause

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.ec.bad_items import BadItems
    from penstock.instrumentation.vllm.ec.decider import EcFailureDecider
    from penstock.instrumentation.vllm.ec.pending_items import PendingItems
    from penstock.instrumentation.vllm.ec.request_loads import RequestLoads

_NOT_FOUND: Final = Cause(c.FAILURE_MODE_PROBE, c.ERROR_TYPE_EVICTED)


class MissingMedia:
    """Fails such requests of one scheduler; on its thread."""

    def __init__(
        self, pending: PendingItems, bad: BadItems, decider: EcFailureDecider, loads: RequestLoads | None
    ) -> None:
        """Use the parts of the scheduler's ``EcLoadController``."""
        self._pending = pending
        self._bad = bad
        self._decider = decider
        self._loads = loads

    def fails(self, request: Any, computed: int) -> bool:
        """Fail a request that needs a bad item and cannot encode it here; return whether it does."""
        bad = [item for item in self._pending.missing(request, computed) if item in self._bad]
        if not bad or self._pending.has_media(request, computed, bad):
            return False
        items = self._pending.without_media(request, computed)
        affected = Affected(request.request_id, computed, items=tuple(items), local_media=False)
        self._decider.decide(request, affected, self.cause_of(items))
        return True

    def refuses(self, request: Any, indexes: Iterable[int]) -> bool:
        """Fail a request of which vLLM would encode these inputs, if one cannot be encoded here; return whether it fails."""
        items = self._pending.lacking_media(request, indexes)
        if items and request.request_id not in self._decider.failing:
            affected = Affected(
                request.request_id, request.num_computed_tokens, items=items, local_media=False
            )
            self._decider.decide(request, affected, self.cause_of(items, request.request_id))
        return bool(items)

    def cause_of(self, items: Iterable[str], request_id: str = "") -> Cause:
        """Return why the first of *items* that is bad, or that the request does without, is so; if none is, no peer has them."""
        if self._loads is not None:
            without = self._loads.without(request_id)
            cause = next((without[item] for item in items if item in without), None)
            if cause is not None:
                return cause
        return next((found for item in items if (found := self._bad.cause(item)) is not None), _NOT_FOUND)
