"""An EC connector of vLLM whose items take a time to arrive: the look-up starts the transfer, and either says "not yet" or waits.

Nothing is moved: what is measured with it is the scheduler, which asks at each step.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = __name__


class TimedEcConnector(ECConnectorBase):  # type: ignore[misc]  # Any, without vLLM
    """Items arrive ``seconds`` after the first question for them; with ``blocks`` the question waits for that (both of its extra config).

    Attributes:
        polls: how often the scheduler has asked for a request.
        clock: returns the time in seconds.

    """

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        given = vllm_config.ec_transfer_config.get_from_extra_config
        self._seconds = float(given("seconds", 0.0))
        self._blocks = bool(given("blocks", False))
        self._arrival: dict[str, float] = {}
        self.polls = 0
        self.clock: Callable[[], float] = time.perf_counter

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Start the transfers of what lies beyond the computed tokens; tell whether all of them have arrived."""
        self.polls += 1
        latest = now = self.clock()
        for feature in request.mm_features:
            place = feature.mm_position
            if place.offset + place.length > num_computed_tokens:
                latest = max(latest, self._arrival.setdefault(feature.identifier, now + self._seconds))
        if latest > now and self._blocks:
            time.sleep(latest - now)
            return True
        return latest <= now

    def has_cache_item(self, identifier: str) -> bool:
        """Tell whether an item has arrived."""
        return self._arrival.get(identifier, float("inf")) <= self.clock()

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """Take an item; no worker wants it."""
        del request, index

    def build_connector_meta(self, scheduler_output: Any) -> ECConnectorMetadata:
        """Return nothing for the workers."""
        del scheduler_output
        return ECConnectorMetadata()

    def request_finished(self, request: Any) -> tuple[bool, None]:
        """Forget the items of a request."""
        for feature in request.mm_features:
            self._arrival.pop(feature.identifier, None)
        return False, None

    def start_load_caches(self, encoder_cache: Any, **kwargs: Any) -> None:
        """Belongs to the worker's side."""

    def save_caches(self, encoder_cache: Any, mm_hash: str, **kwargs: Any) -> None:
        """Belongs to the worker's side."""
