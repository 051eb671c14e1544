"""Numbers, durations and names in the sentences of a diagnosis. Pure."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.agent.badness import NO_SERVERS
from penstock.agent.model import EngineKey
from penstock.agent.parsing import format_duration
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage

_NAMED = 3
_TEXT = 120
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def count(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 request``, ``12 requests``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def peer(address: str, noun: str = "peer") -> str:
    """Return ``peer 10.0.0.7:5600``, or what it is if it is no server."""
    return NO_SERVERS.get(address) or f"{noun} {address}"


def span(seconds: float) -> str:
    """Return a duration: ``54ms``, ``2.5s``, ``12s``, ``10m``, ``1h``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= size * (1 if seconds % size == 0 else 2):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"  # noqa: PLR2004


def window(seconds: float) -> str:
    """Return a window for the next command, no shorter than *seconds*: ``10m``, ``2m30s``."""
    return format_duration(timedelta(seconds=max(1, math.ceil(seconds))))


def others(lasting: int, ended: int) -> str:
    """Return ``; 2 more causes, 1 has ended`` after the sentence of the first cause; empty without others."""
    more = f"; {count(lasting, 'more cause')}" if lasting else ""
    return f"{more}{',' if more else ';'} {count(ended, 'has', 'have')} ended" if ended else more


def well(*, past: bool) -> str:
    """Return that nothing is wrong; of a moment of the *past* only the log is known."""
    return "the log shows nothing wrong" if past else "nothing is wrong"


def ago(time: int, now: int) -> str:
    """Return the age of a time, both nanoseconds."""
    return f"{span(max(1.0, (now - time) // NANOS))} ago"


def key_of(message: EngineKeyMessage) -> EngineKey:
    """Return an engine's key."""
    return EngineKey(message.server, message.engine)


def named(names: Iterable[object], noun: str) -> str:
    """Return ``engine decode/0``, or ``engines a/0, b/0, c/0 and 4 more``."""
    words = sorted(str(name) for name in names)
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return f"{noun}{'' if len(words) == 1 else 's'} {', '.join(words[:_NAMED])}{more}"


def engines(keys: Iterable[EngineKey]) -> str:
    """Return the names of engines."""
    return named(keys, "engine")


def keys_of(keys: Iterable[EngineKey]) -> tuple[EngineKey, ...]:
    """Return keys, each once, sorted."""
    return tuple(sorted(set(keys)))


def cut(text: str) -> str:
    """Return *text* on one line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else f"{line[: _TEXT - 1]}…"


def quantile(values: Sequence[float], ratio: float) -> float:
    """Return a quantile by the nearest rank; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(ratio * len(ordered)))] if ordered else 0.0
