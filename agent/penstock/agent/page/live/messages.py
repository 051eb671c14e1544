"""Messages of the event stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.agent.page.wire import MAX_MESSAGE_BYTES, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.page.live.entries import LogEntry


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is sent.

    Attributes:
        event: its name.
        data: JSON on one line.
        id: the position after it; empty for none.

    """

    event: str
    data: bytes
    id: str = ""

    def encoded(self) -> bytes:
        """Return it as an event stream has it."""
        head = f"id: {self.id}\n" if self.id else ""
        return f"{head}event: {self.event}\ndata: ".encode() + self.data + b"\n\n"


def message(event: str, value: Any, id_: str = "") -> Message:
    """Return the message of *value*."""
    return Message(event, encode(value), id_)


def parts(entries: Sequence[LogEntry], most: int = MAX_MESSAGE_BYTES) -> list[Sequence[LogEntry]]:
    """Return *entries* in parts, each of which makes a message of *most* bytes at most."""
    if len(entries) < 2 or len(encode({"entries": entries})) <= most:  # noqa: PLR2004
        return [entries] if entries else []
    half = len(entries) // 2
    return [*parts(entries[:half], most), *parts(entries[half:], most)]
