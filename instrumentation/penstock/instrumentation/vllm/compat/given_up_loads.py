"""Until 0.29: a NIXL worker that fails a load which has already failed and been told ends its engine."""

from __future__ import annotations

from typing import Any

from penstock.instrumentation.vllm.compat.difference import Difference


class GivenUpLoads(Difference):
    """Keeps the late failure of a load that Penstock gave up from vLLM, which was told of it when it was given up."""

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* is a NIXL worker that takes failures of loads it no longer knows."""
        return hasattr(owner, "_handle_failed_transfer") and not hasattr(owner, "get_transfer_results")

    def _penstock_pop_given_up(self, req_id: str) -> bool:
        """Return, once, whether what fails on this thread is a load that was given up; Penstock's mixin knows."""
        del req_id
        return False

    def _handle_failed_transfer(self, req_id: str, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        if self._penstock_pop_given_up(req_id):
            return None
        return upstream._handle_failed_transfer(req_id, *args, **kwargs)
