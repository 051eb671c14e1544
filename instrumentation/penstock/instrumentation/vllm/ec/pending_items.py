"""The items that a request still needs, those that it waits for, those that can be encoded in this engine, and bad ones.

A bad item is one whose load has failed: it is not loaded again for a minute.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.compat import placeholder_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from penstock.instrumentation.vllm.ec.protocol import EcLoader
    from penstock.instrumentation.vllm.ec.request_loads import RequestLoads
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.recovery import WorkerEncoderInputs
    from penstock.instrumentation.vllm.requests import Cause

REMEMBERED_NS: Final = 60_000_000_000
CAPACITY: Final = 4096
"""Items that are remembered; beyond it the oldest is forgotten."""


class BadItems:
    """The bad items of one scheduler and why; on its thread.

    Attributes:
        table: until when, and why, by item; what is bad no longer may still be in it.

    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Start with none; *clock* is monotonic nanoseconds."""
        self._clock = clock
        self.table: OrderedDict[str, tuple[int, Cause]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self.table)

    def __contains__(self, item: str) -> bool:
        return self.cause(item) is not None

    def remember(self, item: str, cause: Cause) -> None:
        """Record that *item* is bad from now on."""
        self.table[item] = (self._clock() + REMEMBERED_NS, cause)
        self.table.move_to_end(item)
        if len(self.table) > CAPACITY:
            self.table.popitem(last=False)

    def forget(self, item: str) -> None:
        """Record that *item* is bad no longer."""
        self.table.pop(item, None)

    def prune(self) -> None:
        """Forget what is bad no longer; the oldest is first."""
        now = self._clock()
        while self.table and next(iter(self.table.values()))[0] <= now:
            self.table.popitem(last=False)

    def cause(self, item: str) -> Cause | None:
        """Return why *item* is bad; None if it is not, or no longer."""
        found = self.table.get(item)
        if found is None:
            return None
        until_ns, cause = found
        if self._clock() < until_ns:
            return cause
        del self.table[item]
        return None


class PendingItems:
    """Answers for the requests of one scheduler; *computed* is always a request's number of computed tokens."""

    def __init__(
        self,
        scheduler: Any,
        loader: EcLoader | None,
        bad: BadItems,
        worker_media: WorkerEncoderInputs,
        loads: RequestLoads | None = None,
    ) -> None:
        """Ask *loader* for transfers, where the connector moves items ahead of scheduling.

        *worker_media*: what the workers can encode; *loads*: the loader, where it knows requests.
        """
        self._scheduler = scheduler
        self._connector = scheduler.ec_connector
        self._loader = loader
        self._bad = bad
        self._loads = loads
        self._media = LocalMedia(scheduler.vllm_config.model_config)
        self._worker_media = worker_media

    def missing(self, request: Any, computed: int) -> list[str]:
        """Return the items that it needs and vLLM's encoder cache does not have."""
        # An encoder-decoder model's has no such table: it caches nothing.
        held = getattr(self._scheduler.encoder_cache_manager, "cached", ())
        items = dict.fromkeys(feature.identifier for feature in features_beyond(request, computed))
        return [item for item in items if item not in held]

    def loadable(self, request: Any, computed: int) -> dict[str, Any]:
        """Return the missing items that may be loaded, each with the first input that needs it."""
        wanted = {item for item in self.missing(request, computed) if item not in self._bad}
        found: dict[str, Any] = {}
        for feature in features_beyond(request, computed):
            if feature.identifier in wanted:
                found.setdefault(feature.identifier, feature)
        return found

    def awaited(self, request: Any, computed: int) -> list[str]:
        """Return the items that it still waits for."""
        loader = self._loader
        without = self._loads.without(request.request_id) if self._loads is not None else ()
        return [
            item
            for item in self.missing(request, computed)
            if item not in self._bad
            and item not in without
            and (loader.waits_for(item) if loader is not None else not self._connector.has_cache_item(item))
        ]

    def only_what_is_given_up(self, request: Any, computed: int) -> bool:
        """Return whether all that a connector may still wait for is bad: it does not know what Penstock has given up."""
        given_up = any(feature.identifier in self._bad for feature in features_beyond(request, computed))
        return given_up and not self.awaited(request, computed)

    def without_media(self, request: Any, computed: int) -> list[str]:
        """Return the missing items that cannot be encoded here."""
        return [
            item for item in self.missing(request, computed) if not self.has_media(request, computed, [item])
        ]

    def has_media(self, request: Any, computed: int, items: Collection[str]) -> bool:
        """Return whether those *items* can be encoded here."""
        features = features_beyond(request, computed)
        return all(self._media.has(feature) for feature in features if feature.identifier in items)

    def lacking_media(self, request: Any, indexes: Iterable[int]) -> tuple[str, ...]:
        """Return the items of the inputs with those *indexes* that cannot be encoded here."""
        found = [(index, request.mm_features[index]) for index in indexes]
        unknown = self._worker_media.lacking(request, (index for index, _ in found))
        return tuple(
            dict.fromkeys(
                feature.identifier
                for index, feature in found
                if index in unknown or not self._media.has(feature)
            )
        )

    def transfer(self, request: Any, computed: int) -> tuple[int, Peer | None] | None:
        """Return when the first transfer began that it waits for, and the peer; None while none has."""
        loader = self._loader
        if loader is None:
            return None
        began = [
            (start_ns, item)
            for item in self.missing(request, computed)
            if (start_ns := loader.transfer_began(item)) is not None
        ]
        if not began:
            return None
        start_ns, item = min(began)
        return start_ns, loader.peer_of(item)

    def awaited_peer(self, request: Any, computed: int) -> Peer | None:
        """Return the peer that the first of its missing items is expected from; None while several may have it."""
        if self._loader is None:
            return None
        found = (self._loader.peer_of(item) for item in self.missing(request, computed))
        return next((peer for peer in found if peer is not None), None)

    def recall(self, request: Any, computed: int) -> None:
        """Forget bad items that the connector tries again: one that moves items ahead has a memory of its own."""
        if self._loader is not None:
            for feature in features_beyond(request, computed):
                if feature.identifier in self._bad and self._loader.waits_for(feature.identifier):
                    self._bad.forget(feature.identifier)


class LocalMedia:
    """Tells which inputs of one model's requests can be encoded in this engine: those with their media.

    A consumer whose items come from elsewhere may be given nothing, or only the fields from which the place in the prompt is computed
    (vLLM's ``placeholder_metadata_fields``, such as a grid); to encode from those would end the engine.
    """

    def __init__(self, model_config: Any) -> None:
        """Use vLLM's *model_config*; its fields of a modality are read when they are first needed."""
        self._model_config = model_config
        self._resolver: Any = None

    def has(self, feature: Any) -> bool:
        """Return whether *feature*, a vLLM ``MultiModalFeatureSpec``, can be encoded here."""
        data = feature.data
        if not data:
            return False
        if self._resolver is None:
            self._resolver = placeholder_fields(self._model_config)
        sizes = self._resolver.fields_for(feature.modality)
        return any(value.data is not None for key, value in data.items() if key not in sizes)


def features_beyond(request: Any, computed: int) -> list[Any]:
    """Return the inputs of a request that its tokens beyond the *computed* ones need."""
    return [
        feature
        for feature in request.mm_features
        if feature.mm_position.offset + feature.mm_position.length > computed
    ]
