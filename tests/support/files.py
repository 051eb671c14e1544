"""Files that change faster than a filesystem's clock ticks."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TIMES = itertools.count(1_700_000_000_000_000_000, 1_000_000)


def write(path: Path, text: str) -> None:
    """Write *text* in place; the time of modification is another one each time.

    Two writes of one size within a tick (4 ms) look the same otherwise. Outside tests a quarter of a second
    lies between a write and its being taken.
    """
    path.write_text(text)
    moment = next(_TIMES)
    os.utime(path, ns=(moment, moment))
