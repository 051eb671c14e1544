"""Attributes of vLLM's that are replaced, and what they were."""

from __future__ import annotations

from typing import Any, Final

_ABSENT: Final = object()


class Patch:
    """Replacements that can be undone, the last one first. Later patches by others over ours are left alone."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a class or module; what was a static method stays one."""
        before = vars(owner).get(name, _ABSENT)
        if isinstance(before, staticmethod):
            value = staticmethod(value)
        setattr(owner, name, value)
        self._undo.append((owner, name, before, value))

    def undo(self) -> None:
        """Put back what was there, unless somebody else has replaced it meanwhile."""
        while self._undo:
            owner, name, before, value = self._undo.pop()
            if vars(owner).get(name, _ABSENT) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
