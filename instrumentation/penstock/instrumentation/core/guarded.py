"""The guard as a decorator: an error in a function of ours becomes its default value."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from penstock.instrumentation.core.guard import guard

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_R = TypeVar("_R")
_D = TypeVar("_D")


def guarded(hook: str, *, default: _D) -> Callable[[Callable[_P, _R]], Callable[_P, _R | _D]]:
    """Return a decorator that contains errors by the guard of *hook* and returns *default* in their place.

    Without an error it costs one call; the guard itself is entered only once an exception is there.
    """
    contained = guard(hook)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R | _D]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R | _D:
            try:
                return function(*args, **kwargs)
            except Exception:
                with contained:
                    raise
            return default

        return call

    return decorate
