"""Numbers, times and names as text. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.agent.model import policy_names, short_policy_names
from penstock.proto.names import label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp
    from penstock.proto.v1.admin_pb2 import Ejection, Pause
    from penstock.proto.v1.common_pb2 import EngineKey, PolicySource

NONE = "-"
INDENT = "  "
"""Before the lines below a title."""
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "m"))
_UNPRINTABLE = re.compile(r"[^\n -~]")
_OWN = "vllm's own"
# By the numbers of the wire, as this module loads no protobuf.
_QUARANTINE_STATES = {1: "ok", 2: "quarantined", 3: "probing"}
# Styles are marked by lone surrogates, which UTF-8 texts of the wire cannot contain, and become terminal codes when
# printed: a client cannot forge a style.
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
    """Return a duration as kubectl does: ``12s``, ``5m``, ``3h``, ``2d``; from two units on, the larger one."""
    for size, unit in _STEPS:
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"


def ago(unix_nano: int, now: float) -> str:
    """Return the age of a time: ``5m ago``; ``in 5m`` for a future one, ``-`` for 0."""
    if not unix_nano:
        return NONE
    seconds = now - unix_nano / 1e9
    return f"{age(seconds)} ago" if seconds > -1 else f"in {age(-seconds)}"


def ago_of(moment: Timestamp, now: float) -> str:
    """Return the age of *moment*; ``-`` if it is not set."""
    return ago(moment.ToNanoseconds(), now)


def span_of_time(seconds: float) -> str:
    """Return a duration: ``850µs``, ``1.2ms``, ``41ms``, ``3.4s``, ``5m``."""
    if seconds <= 0:
        return "0"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if seconds < limit:
            value = seconds * factor
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"  # noqa: PLR2004
    return age(seconds)


def policies(sources: Sequence[PolicySource], hash_: str) -> str:
    """Return the policies behind a hash: ``decode (generation 3, by alice@host)``; ``vllm's own`` for none."""
    return policy_names(sources, hash_) or _OWN


def short_policies(sources: Sequence[PolicySource], hash_: str) -> str:
    """Return what :func:`policies` does, for a column: ``decode/3``."""
    return short_policy_names(sources, hash_) or _OWN


def paused(what: str) -> str:
    """Return a paused state with what would be in force."""
    return f"paused (would be {what})"


def pause_end(pause: Pause, now: float) -> str:
    """Return when a pause ends: ``ends in 5m``, or ``until 'agentctl resume'``."""
    return f"ends {ago_of(pause.until, now)}" if pause.HasField("until") else "until 'agentctl resume'"


def pause_origin(pause: Pause, now: float) -> str:
    """Return since when, by whom and why an engine is paused, and until when, as far as known."""
    parts = (
        ago_of(pause.since, now) if pause.HasField("since") else "",
        f"by {pause.author}" if pause.author else "",
    )
    known = " ".join(part for part in parts if part)
    why = f": {one_line(pause.reason)}" if pause.reason else ""
    return f"{known}{', ' if known else ''}{pause_end(pause, now)}{why}"


def ejection_words(ejection: Ejection, now: float) -> str:
    """Return since when, by whom and why a server is out of rotation, and until when."""
    by = f" by {ejection.author}" if ejection.author else ""
    why = f": {one_line(ejection.reason)}" if ejection.reason else ""
    way = "" if ejection.in_force else "; its front end has not said that it answers so"
    ends = f"ends {ago_of(ejection.until, now)}"
    if not ejection.HasField("since"):
        return f"the order has ended, and its front end has not followed yet; {ends} at the latest"
    return f"{ago_of(ejection.since, now)}{by}, {ends}{why}{way}"


def engine(key: EngineKey) -> str:
    """Return an engine's name: ``decode/0``, or ``0`` in a pod with one server."""
    return f"{key.server}/{key.engine}" if key.server else key.engine or NONE


def folded(text: str) -> str:
    """Return *text* on one line: each run of white space becomes one space."""
    return " ".join(text.split())


def one_line(text: str, longest: int = 100) -> str:
    """Fold white space and cut to *longest* characters."""
    line = folded(text)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def word(enum: Any, number: int) -> str:
    """Return the label of an enum value; ``unknown`` if unset or of a newer version."""
    return label(enum, number) if number else "unknown"


def count(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 engine``, ``2 engines``, ``3 processes``."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def quarantine_state(number: int) -> str:
    """Return a ``QuarantineState`` for a person: ``ok``, ``quarantined`` or ``probing``; ``unknown`` if unset or newer."""
    return _QUARANTINE_STATES.get(number, "unknown")


def style(text: str, look: str) -> str:
    """Mark *text* as ``bold``, ``red``, ``green`` or ``yellow``; :func:`printable` makes the codes."""
    return f"{_MARKS[look]}{text}{_PLAIN}"


def printable(text: str) -> str:
    """Escape non-printable characters, and turn styles into terminal codes.

    Clients choose request ids: they must not move the cursor, forge a line or change text direction.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def with_escapes(text: str, escape: Callable[[str], str]) -> str:
    """Return *text* with what is not printable escaped by *escape*, but for newlines."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0].isprintable() else escape(found[0]), text)


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return _CODES.get(character) or character.encode("unicode_escape").decode()


def duration(item: Duration) -> str:
    """Return a duration; ``-`` for none."""
    nano = item.ToNanoseconds()
    return span_of_time(nano / 1e9) if nano > 0 else NONE


def section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield a title and its lines, indented; nothing without lines."""
    found = list(lines)
    if found:
        yield f"{title}:"
        yield from (INDENT + line for line in found)
