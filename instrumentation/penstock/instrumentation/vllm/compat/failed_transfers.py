"""Until 0.30: vLLM's counter of failed transfers has failed handshakes in it, and reads that come too late, once for each request."""

from __future__ import annotations

import inspect
from typing import Any


def counts_transfers_alone(worker: Any) -> bool:
    """Return whether a NIXL worker counts a failure that has a counter of its own under that alone."""
    method = getattr(worker, "_handle_failed_transfer", None)
    return method is None or "record_failed_transfer" in inspect.signature(method).parameters
