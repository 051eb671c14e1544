"""The guard as a decorator."""

from __future__ import annotations

import pytest
from penstock.instrumentation.core import guard, guarded


class Part:
    """Something with a hook point."""

    @guarded("test_guarded", default="default")
    def half(self, number: int, *, by: int = 2) -> str:
        """Divide, which may fail."""
        return str(number // by)


def test_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method answers for itself, and looks like itself."""
    monkeypatch.setattr(guard, "raising", False)
    assert Part().half(4) == "2"
    assert Part().half.__name__ == "half"


def test_an_error_becomes_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is counted, and the default is returned; under ``PENSTOCK_GUARD=raise`` it goes on."""
    monkeypatch.setattr(guard, "raising", False)
    guard.reset()
    assert not guard.counts
    assert Part().half(4, by=0) == "default"
    assert guard.counts
    monkeypatch.setattr(guard, "raising", True)
    with pytest.raises(ZeroDivisionError):
        Part().half(4, by=0)
    guard.reset()


def test_what_is_no_exception_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """``KeyboardInterrupt`` and ``SystemExit`` are the host's."""
    monkeypatch.setattr(guard, "raising", False)

    @guarded("test_guarded", default=None)
    def leave() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        leave()
