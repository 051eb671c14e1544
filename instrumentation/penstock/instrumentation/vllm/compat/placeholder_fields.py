"""Until 0.29: vLLM has no object that tells which fields of a modality are no media."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


class _Fields:
    """The fields of one model, as ``PlaceholderMetadataResolver`` of a newer vLLM tells them."""

    def __init__(self, model_config: Any) -> None:
        self._model_config = model_config
        self._found: dict[str, set[str]] = {}

    def fields_for(self, modality: str) -> set[str]:
        """Return the names of those from which a place in the prompt is computed; none where vLLM cannot tell, as in its own."""
        if modality not in self._found:
            self._found[modality] = set()
            with suppress(Exception):
                self._found[modality] = self._ask(modality)
        return self._found[modality]

    def _ask(self, modality: str) -> set[str]:
        from vllm.multimodal import MULTIMODAL_REGISTRY

        parser = MULTIMODAL_REGISTRY.create_processor(self._model_config).info.data_parser
        # Until 0.27 there is none: each request has its media.
        tell = getattr(parser, "placeholder_metadata_fields", None)
        return set() if tell is None else set(tell(modality))


def placeholder_fields(model_config: Any) -> Any:
    """Return what has vLLM's ``fields_for(modality)`` for the model of *model_config*."""
    try:
        from vllm.distributed.ec_transfer.ec_connector.utils import PlaceholderMetadataResolver
    except ImportError:
        return _Fields(model_config)
    return PlaceholderMetadataResolver(model_config)
