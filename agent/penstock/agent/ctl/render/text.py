"""Numbers and moments as people say them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.proto.names import label

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from penstock.proto.v1.common_pb2 import EngineKey

NONE = "-"
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "m"))
_HASH_SHOWN = 12
# A look is a mark that no message can hold, and a terminal's code once it is printed: texts of the wire are UTF-8, which
# has no lone surrogates. So nothing that a client sends is taken for a colour of ours.
_MARKS = {"bold": "\ud801", "red": "\ud831", "green": "\ud832", "yellow": "\ud833"}
_PLAIN = "\ud800"
_CODES = {
    _PLAIN: "\x1b[0m",
    _MARKS["bold"]: "\x1b[1m",
    _MARKS["red"]: "\x1b[31m",
    _MARKS["green"]: "\x1b[32m",
    _MARKS["yellow"]: "\x1b[33m",
}


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


def folded(text: str) -> str:
    """Return *text* on one line: each run of white space becomes one space."""
    return " ".join(text.split())


def one_line(text: str, longest: int = 100) -> str:
    """Fold white space and cut."""
    line = folded(text)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def word(enum: Any, number: int) -> str:
    """Return the word of an enum's value; ``unknown`` for one that is not set or that a newer peer has sent."""
    return label(enum, number) if number else "unknown"


def style(text: str, look: str) -> str:
    """Give *text* a look: ``bold``, ``red``, ``green`` or ``yellow``. It shows once it is :func:`printable`."""
    return f"{_MARKS[look]}{text}{_PLAIN}"


def printable(text: str) -> str:
    """Escape all that is not seen as what it is, and turn looks into the terminal's codes.

    Request ids are chosen by clients: they must not move the cursor, forge a line or turn its direction.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return _CODES.get(character) or character.encode("unicode_escape").decode()
