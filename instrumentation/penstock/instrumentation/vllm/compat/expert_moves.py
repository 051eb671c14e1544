"""Until 0.30: the stream on which a layer's experts move has another name among the parameters of ``move_to_buffer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MOVE_STREAM: Final = ("stream", "cuda_stream")
"""The parameter's names, the newest first."""


def move_stream(call: Mapping[str, Any]) -> Any:
    """Return the stream of a *call* of ``move_to_buffer``, by its parameters' names; None for a move that is waited for."""
    return next((call[name] for name in MOVE_STREAM if name in call), None)
