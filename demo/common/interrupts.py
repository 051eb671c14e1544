"""SIGINT, SIGTERM and SIGHUP end a demo once: what runs stops, what was written goes, and a second signal changes nothing."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedByError(KeyboardInterrupt):
    """A signal; *number* says which."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _State:
    held = 0
    pending = 0
    ended = False


def install() -> None:
    """Raise :class:`InterruptedByError` in the main thread at the first signal.

    One that is ignored stays so: ``nohup`` ignores SIGHUP.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _arrived)


@contextmanager
def held() -> Iterator[None]:
    """Let a signal wait for the end of this block: what it starts or creates has an owner by then."""
    _State.held += 1
    try:
        yield
    finally:
        _State.held -= 1
        if _State.pending and not _State.held:
            number, _State.pending = _State.pending, 0
            raise InterruptedByError(number)


def _arrived(number: int, _frame: object) -> None:
    if _State.ended:
        return
    _State.ended = True
    if _State.held:
        _State.pending = number
        return
    raise InterruptedByError(number)
