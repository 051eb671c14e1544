"""Modes of fault drills by channel, as the command line names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SLOW: Final = "slow"
"""The wire's unspecified mode, with a delay: the transfer succeeds later."""

DRILL_MODES: Final[Mapping[str, tuple[str, ...]]] = {
    "kv": ("handshake", "setup", "transfer", "exception", "notification", SLOW),
    "ec": ("probe", "transfer", "load", SLOW),
}
