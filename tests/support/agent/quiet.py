"""The service's log records kept off the streams that a command line's runner takes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Drop log records: the service runs in this process, and the runner takes all that is printed in it."""

    def drop(*_: object) -> NoReturn:
        raise structlog.DropEvent

    structlog.configure(processors=[drop])
    try:
        yield
    finally:
        structlog.reset_defaults()
