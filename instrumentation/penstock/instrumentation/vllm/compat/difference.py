"""What each difference is: a mixin that an older vLLM needs."""

from __future__ import annotations


class Difference:
    """A mixin between Penstock's mixin and a class of vLLM's; it gives that class what a newer vLLM's has."""

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner*, a class of vLLM's, lacks what this gives."""
        raise NotImplementedError
