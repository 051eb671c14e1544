"""vLLM's ExampleConnector, as a connector is meant to be: a file that cannot be read is a load that failed, and the step goes on."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from safetensors import SafetensorError, safe_open
    from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector


class TolerantExampleConnector(ExampleConnector):
    """Names the blocks whose file cannot be read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._broken: set[int] = set()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load what can be read."""
        metadata = self._get_connector_metadata()
        readable = copy.copy(metadata)
        readable.requests = []
        for each in metadata.requests:
            if each.is_store or self._reads(each):
                readable.requests.append(each)
            else:
                self._broken.update((each.slot_mapping // self._block_size).tolist())
        self.bind_connector_metadata(readable)
        super().start_load_kv(forward_context, **kwargs)
        self.bind_connector_metadata(metadata)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that were not loaded, once."""
        broken, self._broken = self._broken, set()
        return broken

    def _reads(self, load: Any) -> bool:
        folder = self._generate_foldername_debug(load.token_ids, load.mm_hashes)
        try:
            for file in Path(folder).iterdir():
                with safe_open(file, "pt"):
                    pass
        except SafetensorError:
            return False
        return True
