"""Until 0.26: the NIXL scheduler's method that leaves out what is not exchanged has another name."""

from __future__ import annotations

from typing import Any, Final

_NAMES: Final = ("get_exchange_clipped_blocks", "get_sw_clipped_blocks")


def block_clipper(scheduler: Any) -> Any:
    """Return what a NIXL connector's scheduler uses to name the blocks that it offers; None of another's."""
    return next((found for name in _NAMES if (found := getattr(scheduler, name, None)) is not None), None)
