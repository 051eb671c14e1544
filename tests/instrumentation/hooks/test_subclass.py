"""Instrumented subclasses, and objects whose class is swapped."""

from __future__ import annotations

from abc import ABC
from typing import Any

import pytest
from penstock.instrumentation.hooks.patch import Swaps, instrumented


class Base:
    """Something of vLLM's."""

    def word(self) -> str:
        """Say something."""
        return "base"


class Mixin:
    """Something of ours."""

    def word(self) -> str:
        """Say something more."""
        host: Any = super()
        return f"mixin {host.word()}"


def test_subclass() -> None:
    """An instrumented class looks like its base, is made once, and is not instrumented twice."""
    made = instrumented(Mixin, Base)
    assert made is instrumented(Mixin, Base)
    assert instrumented(Mixin, made) is made
    assert (made.__name__, made.__module__, made.__qualname__) == (
        Base.__name__,
        Base.__module__,
        Base.__qualname__,
    )
    assert made().word() == "mixin base"


def test_swap() -> None:
    """An object gains a mixin and loses it again; one that is gone meanwhile does not matter."""
    swaps, kept, gone = Swaps(), Base(), Base()
    for each in (kept, gone, kept):
        swaps.swap(each, Mixin)
    assert isinstance(kept, Base)
    assert kept.word() == "mixin base"
    del gone, each
    swaps.restore()
    assert type(kept) is Base


def test_swap_of_a_foreign_layout() -> None:
    """A class that does not allow it says so, and stays."""

    class Abstract(ABC):  # noqa: B024
        pass

    target = Abstract()
    with pytest.raises(TypeError, match="layout"):
        Swaps().swap(target, Mixin)
    assert type(target) is Abstract
