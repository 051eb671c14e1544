"""``addresses.json`` of the state directory: where the running agent listens."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import structlog
from penstock.agent.state import file_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_log = structlog.get_logger(__name__)

_NAME = "addresses.json"


def remove_addresses(state_dir: Path) -> None:
    """Remove the file of an agent that was killed."""
    state_dir.joinpath(_NAME).unlink(missing_ok=True)


def write_addresses(state_dir: Path, addresses: Mapping[str, str]) -> Callable[[], None]:
    """Write the file for its owner alone; returns what removes it. A full disk is logged: the log has the addresses as well."""
    path = state_dir / _NAME
    written = path.with_suffix(".tmp")
    try:
        written.unlink(missing_ok=True)
        with open(written, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump({"pid": os.getpid(), **addresses}, file)
        written.replace(path)
    except OSError as error:
        _log.warning("addresses not written", path=str(path), error=str(error))
        return lambda: None
    ours = file_identity(path)

    def remove() -> None:
        # Another agent may have taken the directory and written its own.
        if file_identity(path) == ours:
            path.unlink(missing_ok=True)

    return remove
