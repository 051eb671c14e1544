"""Numbers and moments as people say them. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from penstock.proto.v1.common_pb2 import EngineKey

NONE = "-"
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "m"))
_HASH_SHOWN = 12
# Control characters, and those that turn a line's direction; but for colours, which this program writes itself.
_CONTROL = re.compile("(?!\x1b\\[[0-9;]*m)[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def age(seconds: float) -> str:
    """Say how long, as kubectl does: ``12s``, ``5m``, ``3h``, ``2d``; from two units on, the larger one."""
    for size, unit in _STEPS:
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"


def ago(unix_nano: int, now: float) -> str:
    """Say how long ago a moment was; ``in 5m`` for one to come, ``-`` for none."""
    if not unix_nano:
        return NONE
    seconds = now - unix_nano / 1e9
    return f"{age(seconds)} ago" if seconds > -1 else f"in {age(-seconds)}"


def ago_of(moment: Timestamp, now: float) -> str:
    """Say how long ago *moment* was; ``-`` if it is not set."""
    return ago(moment.ToNanoseconds(), now)


def span_of_time(seconds: float) -> str:
    """Say how long something took: ``850µs``, ``1.2ms``, ``41ms``, ``3.4s``, ``5m``."""
    if seconds <= 0:
        return "0"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if seconds < limit:
            value = seconds * factor
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"  # noqa: PLR2004
    return age(seconds)


def short_hash(text: str) -> str:
    """Say which policy is in force: the beginning of its hash, or vLLM's own configuration."""
    return text[:_HASH_SHOWN] if text else "vllm's own"


def paused(what: str) -> str:
    """Say what a pause holds back."""
    return f"paused (would be {what})"


def engine(key: EngineKey) -> str:
    """Say which engine: ``decode/0``, or ``0`` in a pod with one server."""
    return f"{key.server}/{key.engine}" if key.server else key.engine or NONE


def one_line(text: str, longest: int = 100) -> str:
    """Fold white space and cut."""
    folded = " ".join(text.split())
    return folded if len(folded) <= longest else folded[: longest - 1] + "…"


def printable(text: str) -> str:
    """Escape what would move the cursor or forge a line: request ids are chosen by clients."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
