"""Until 0.30: ``_handle_blocked_waiting_request`` has another name."""

from __future__ import annotations

from typing import Any

from penstock.instrumentation.vllm.compat.difference import Difference


class BlockedWaiting(Difference):
    """Asks by the new name whether a request that waits for something may go on."""

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* has only the old name."""
        return not hasattr(owner, "_handle_blocked_waiting_request")

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        upstream: Any = super()
        return upstream._try_promote_blocked_waiting_request(request)  # type: ignore[no-any-return]

    def _try_promote_blocked_waiting_request(self, request: Any) -> bool:
        """Answer what vLLM asks by the old name, with Penstock's mixin in between."""
        return self._handle_blocked_waiting_request(request)
