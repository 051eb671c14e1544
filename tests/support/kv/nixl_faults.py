"""Faults made in NIXL's own agent class, below every mixin, and refusals of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from tests.support.kv.nixl_pair import Engine


def break_agent(monkeypatch: pytest.MonkeyPatch, engine: Engine, name: str, replacement: Any) -> None:
    """Replace a method of NIXL's own agent class; it is so for all agents of the process."""
    base = type(engine.worker.nixl_wrapper).__mro__[2]
    monkeypatch.setattr(base, name, replacement)


def refuse(*_: Any, **__: Any) -> Any:
    """Raise as NIXL does."""
    raise RuntimeError("below")


def break_handles(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, name: str, replacements: Sequence[tuple[Any, Any]]
) -> None:
    """Replace a method of NIXL's own agent class for some handles: each pair is a handle and what is called with no arguments."""
    base = type(engine.worker.nixl_wrapper).__mro__[2]
    original = getattr(base, name)

    def chosen(agent: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
        for broken, replacement in replacements:
            if handle is broken:
                return replacement()
        return original(agent, handle, *args, **kwargs)

    monkeypatch.setattr(base, name, chosen)
