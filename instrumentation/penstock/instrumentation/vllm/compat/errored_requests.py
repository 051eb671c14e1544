"""Until 0.30: a request whose encoder outputs do not fit has no set of its own; it fails with those whose grammar does not compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableSet


def errored_requests(scheduler: Any) -> MutableSet[str]:
    """Return the ids of the requests that vLLM finishes with an error at the end of the present update."""
    found: MutableSet[str] | None = getattr(scheduler, "encoder_cache_mismatch_reqs", None)
    return scheduler.grammar_compile_error_reqs if found is None else found
