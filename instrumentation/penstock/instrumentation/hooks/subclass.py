"""Instrumented subclasses with the names of their base class.

vLLM keys statistics and settings by a connector's class name and checks ``isinstance``; a subclass of the same
``__name__``, ``__qualname__`` and ``__module__`` keeps all of that.
"""

from __future__ import annotations

import weakref
from typing import Any

_MADE: dict[tuple[type, type], type] = {}


def instrumented(mixin: type, base: type) -> type:
    """Return the subclass of *base* with *mixin* in front; the same one for the same arguments."""
    if issubclass(base, mixin):
        return base
    made = _MADE.get((mixin, base))
    return made if made is not None else _MADE.setdefault((mixin, base), _make(mixin, base))


def _make(mixin: type, base: type) -> type:
    return type(
        base.__name__,
        (mixin, base),
        {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__},
    )


class Swaps:
    """Objects whose class was replaced after their construction, and their former classes."""

    def __init__(self) -> None:
        self._swapped: list[tuple[weakref.ref[Any], type]] = []

    def swap(self, target: Any, mixin: type[Any]) -> None:
        """Put *mixin* in front of the class of *target*.

        Raises:
            TypeError: its class does not allow that: *mixin* must derive from what the class's root derives from
                (``object`` or ``ABC``), and neither may have slots.

        """
        base = type(target)
        if issubclass(base, mixin):
            return
        target.__class__ = instrumented(mixin, base)
        self._swapped = [(ref, was) for ref, was in self._swapped if ref() is not None]
        self._swapped.append((weakref.ref(target), base))

    def restore(self) -> None:
        """Give every object that is still alive its former class."""
        while self._swapped:
            ref, base = self._swapped.pop()
            target = ref()
            if target is not None:
                target.__class__ = base
