"""Replacement of attributes of vLLM's classes and modules, and its undoing; instrumented subclasses with the names of their base class.

vLLM keys statistics and settings by a connector's class name and checks ``isinstance``; a subclass of the same
``__name__``, ``__qualname__`` and ``__module__`` keeps all of that.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

_ABSENT: Final = object()
_MADE: dict[tuple[type, type], type] = {}


class Patch:
    """Replacements that :meth:`undo` reverts, the last one first. An attribute that other code replaced later is unchanged."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a class or module; a static method stays one."""
        before = vars(owner).get(name, _ABSENT)
        if isinstance(before, staticmethod):
            value = staticmethod(value)
        setattr(owner, name, value)
        self._undo.append((owner, name, before, value))

    def undo(self) -> None:
        """Restore the former values, except where other code has replaced ours."""
        while self._undo:
            owner, name, before, value = self._undo.pop()
            if vars(owner).get(name, _ABSENT) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


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
