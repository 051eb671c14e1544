"""What a request still needs of its encoder inputs, and what of that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.ec.ec_media import LocalMedia

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.instrumentation.vllm.ec.bad_items import BadItems
    from penstock.instrumentation.vllm.ec.protocol import EcLoader
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.recovery import WorkerEncoderInputs


class PendingItems:
    """Looks at the requests of one scheduler; each with so many computed tokens."""

    def __init__(
        self, scheduler: Any, loader: EcLoader | None, bad: BadItems, worker_media: WorkerEncoderInputs
    ) -> None:
        """Ask *loader* what moves, if the connector moves items ahead, else the connector what is there; *worker_media* what workers can encode."""
        self._scheduler = scheduler
        self._connector = scheduler.ec_connector
        self._loader = loader
        self._bad = bad
        self._media = LocalMedia(scheduler.vllm_config.model_config)
        self._worker_media = worker_media

    def missing(self, request: Any, computed: int) -> list[str]:
        """Return the items that it needs and vLLM's encoder cache does not have."""
        # An encoder-decoder model's has no such table: it caches nothing.
        held = getattr(self._scheduler.encoder_cache_manager, "cached", ())
        items = dict.fromkeys(feature.identifier for feature in features_beyond(request, computed))
        return [item for item in items if item not in held]

    def awaited(self, request: Any, computed: int) -> list[str]:
        """Return the items that it still waits for."""
        loader = self._loader
        return [
            item
            for item in self.missing(request, computed)
            if item not in self._bad
            and (loader.waits_for(item) if loader is not None else not self._connector.has_cache_item(item))
        ]

    def only_what_is_given_up(self, request: Any, computed: int) -> bool:
        """Tell whether all that a connector may still wait for is bad: it is not told what we have given up."""
        given_up = any(feature.identifier in self._bad for feature in features_beyond(request, computed))
        return given_up and not self.awaited(request, computed)

    def without_media(self, request: Any, computed: int) -> list[str]:
        """Return the missing items that cannot be encoded here."""
        return [
            item for item in self.missing(request, computed) if not self.has_media(request, computed, [item])
        ]

    def has_media(self, request: Any, computed: int, items: Collection[str]) -> bool:
        """Tell whether those *items* can be encoded here."""
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
        """Return when the first transfer began that it waits for, and from whom; None while none has."""
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
        """Let items be bad no longer that a connector tries again: one that moves items ahead has a memory of its own."""
        if self._loader is not None:
            for feature in features_beyond(request, computed):
                if feature.identifier in self._bad and self._loader.waits_for(feature.identifier):
                    self._bad.forget(feature.identifier)


def features_beyond(request: Any, computed: int) -> list[Any]:
    """Return the inputs of a request that its tokens beyond the *computed* ones need."""
    return [
        feature
        for feature in request.mm_features
        if feature.mm_position.offset + feature.mm_position.length > computed
    ]
