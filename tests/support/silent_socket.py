"""A peer that takes connections and says nothing."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def silent_socket(directory: Path) -> Iterator[str]:
    """Listen on a unix socket in *directory* and accept nothing; yield its address, as gRPC takes it."""
    path = directory / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen(64)
        yield f"unix://{path}"
