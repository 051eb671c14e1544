"""Faults made in NIXL's own agent class, below every mixin, and refusals of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from tests.support.kv.nixl_pair import Engine


def break_agent(monkeypatch: pytest.MonkeyPatch, engine: Engine, name: str, replacement: Any) -> None:
    """Replace a method of NIXL's own agent class; it is so for all agents of the process."""
    base = type(engine.worker.nixl_wrapper).__mro__[2]
    monkeypatch.setattr(base, name, replacement)


def refuse(*_: Any, **__: Any) -> Any:
    """Raise as NIXL does."""
    raise RuntimeError("below")
