"""Whether an input can be encoded in this engine: it has its media, and not just what tells its size.

A consumer whose items come from elsewhere may be given nothing, or only the fields from which the place in the prompt is
computed (vLLM's ``placeholder_metadata_fields``, such as a grid); to encode from those would end the engine.
"""

from __future__ import annotations

from typing import Any


class LocalMedia:
    """Looks at the inputs of one model's requests."""

    def __init__(self, model_config: Any) -> None:
        """Look by vLLM's *model_config*; what it says of a modality is asked when it is first needed."""
        self._model_config = model_config
        self._resolver: Any = None

    def has(self, feature: Any) -> bool:
        """Tell whether *feature*, a vLLM ``MultiModalFeatureSpec``, can be encoded here."""
        data = feature.data
        if not data:
            return False
        if self._resolver is None:
            from vllm.distributed.ec_transfer.ec_connector.utils import PlaceholderMetadataResolver

            self._resolver = PlaceholderMetadataResolver(self._model_config)
        sizes = self._resolver.fields_for(feature.modality)
        return any(value.data is not None for key, value in data.items() if key not in sizes)
