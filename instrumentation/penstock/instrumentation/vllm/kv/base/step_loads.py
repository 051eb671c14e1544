"""The loads and saves of one connector in the step being scheduled. Runs on the scheduler's thread."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.compat import child_connectors
from penstock.instrumentation.vllm.kv.base import connector_adapters
from penstock.instrumentation.vllm.messages import LOADS, LOADS_MAX, SAVES, KvLoad, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_MATCHES_MAX: Final = 1_024
"""Matched requests that are kept until they get their blocks; the oldest is forgotten beyond that."""


class KvStepLoads:
    """The loads and saves of one connector; a MultiConnector's belong to its children."""

    def __init__(self, connector: Any) -> None:
        """Collect the loads and saves of *connector*."""
        self._place = place_of([getattr(connector, "_cache_hit_source", None)])
        self._find_saves = connector_adapters.adapter_for(connector_adapters.SAVE_FINDERS, connector)
        self._waits: dict[str, bool] = {}
        self._loads: dict[str, KvLoad] = {}

    def on_match(self, request_id: str, *, waits: bool) -> None:
        """Record that the connector has KV for a request; *waits*: the request waits for the load (asynchronous)."""
        if request_id not in self._waits and len(self._waits) >= _MATCHES_MAX:
            del self._waits[next(iter(self._waits))]
        self._waits[request_id] = waits

    def on_load_allocated(self, request_id: str, tokens: int) -> None:
        """Record that a request got blocks for a load of *tokens*."""
        waits = self._waits.pop(request_id, False)
        if len(self._loads) < LOADS_MAX:
            self._loads[request_id] = KvLoad(request_id, tokens, waits, self._place)

    def set_source(self, request_id: str, sources: Iterable[Any]) -> None:
        """Set the place of a load from the connector's *sources* (vLLM's ``CacheHitSource``)."""
        load = self._loads.get(request_id)
        if load is not None and load.place != (place := place_of(sources)):
            self._loads[request_id] = load._replace(place=place)

    @staticmethod
    def place_in(connector: Any, request_id: str) -> str:
        """Return the place that a load of the step being scheduled comes from, by *connector* or a child of it; empty if unknown."""
        step = getattr(connector, "_penstock_step", None)
        load = step._loads.get(request_id) if step is not None else None
        if load is not None:
            return str(load.place)
        children = child_connectors(connector)
        return next(filter(None, (KvStepLoads.place_in(child, request_id) for child in children)), "")

    def on_finished(self, request_id: str) -> None:
        """Forget a finished request; its allocated loads still go to the workers."""
        self._waits.pop(request_id, None)

    def attach(self, connector: Any, metadata: Any, scheduled: Any) -> None:
        """Attach the loads and saves to the step's *metadata*, if there are any; *scheduled* is the SchedulerOutput."""
        if self._loads:
            loads, self._loads = tuple(self._loads.values()), {}
            setattr(metadata, LOADS, loads)
        if self._find_saves is not None:
            saves = tuple(islice(self._find_saves(connector, metadata, scheduled), LOADS_MAX))
            if saves:
                setattr(metadata, SAVES, saves)
