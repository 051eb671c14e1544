"""What one connector is to load and save in the step that the scheduler is putting together. On the scheduler's thread."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.kv.base import connector_adapters
from penstock.instrumentation.vllm.messages import LOADS, LOADS_MAX, SAVES, KvLoad, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_ASKED_MAX: Final = 1_024
"""Requests whose last answer is remembered until they get their blocks."""


class KvStepLoads:
    """The loads and saves of one connector; those of a MultiConnector are its children's."""

    def __init__(self, connector: Any) -> None:
        """Collect for *connector*."""
        self._place = place_of([getattr(connector, "_cache_hit_source", None)])
        self._saves = connector_adapters.named(connector_adapters.SAVES, connector)
        self._waits: dict[str, bool] = {}
        self._begun: dict[str, KvLoad] = {}

    def found(self, request_id: str, *, waits: bool) -> None:
        """Note that the connector has something for a request, and whether the request is to wait for it."""
        if request_id not in self._waits and len(self._waits) >= _ASKED_MAX:
            del self._waits[next(iter(self._waits))]
        self._waits[request_id] = waits

    def begins(self, request_id: str, tokens: int) -> None:
        """Note that a request got its blocks, to load *tokens* into them."""
        waits = self._waits.pop(request_id, False)
        if len(self._begun) < LOADS_MAX:
            self._begun[request_id] = KvLoad(request_id, tokens, waits, self._place)

    def comes_from(self, request_id: str, sources: Iterable[Any]) -> None:
        """Note where the connector says that a load which has just begun comes from."""
        load = self._begun.get(request_id)
        if load is not None:
            self._begun[request_id] = load._replace(place=place_of(sources))

    def left(self, request_id: str) -> None:
        """Forget a request that has finished; what has begun for it goes to the workers all the same."""
        self._waits.pop(request_id, None)

    def attach(self, connector: Any, metadata: Any, scheduled: Any) -> None:
        """Put the loads and saves on the step's *metadata*, if there are any; *scheduled* is the SchedulerOutput."""
        if self._begun:
            loads, self._begun = tuple(self._begun.values()), {}
            setattr(metadata, LOADS, loads)
        if self._saves is not None:
            saves = tuple(islice(self._saves(connector, metadata, scheduled), LOADS_MAX))
            if saves:
                setattr(metadata, SAVES, saves)
