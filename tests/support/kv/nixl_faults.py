"""Faults made in NIXL's own agent class, below every mixin, and refusals of it."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


@contextmanager
def faults_of(side_channel_port: int, **reads: int) -> Iterator[None]:
    """Let a server of ``faulty_nixl_server`` have faults: *fails* and *refused* are the read of each load that is hit."""
    file = _file(side_channel_port)
    staged = file.with_suffix(".staged")
    staged.write_text(json.dumps(reads))
    staged.replace(file)
    try:
        yield
    finally:
        file.unlink()


def present_faults(side_channel_port: int | str) -> dict[str, int]:
    """Return the faults that the server with that side channel has now."""
    try:
        found: dict[str, int] = json.loads(_file(side_channel_port).read_text())
    except FileNotFoundError:
        return {}
    return found


def _file(side_channel_port: int | str) -> Path:
    return Path(tempfile.gettempdir()) / f"nixl-faults-{side_channel_port}.json"
