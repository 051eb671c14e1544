"""Replacement of attributes of vLLM's classes and modules, and its undoing."""

from __future__ import annotations

from typing import Any, Final

_ABSENT: Final = object()


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
