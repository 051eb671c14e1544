"""Messages of the event stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Part(NamedTuple):
    """Entries that fit into one message, and it."""

    message: Message
    entries: Sequence[LogEntry]


def parts(event: str, entries: Sequence[LogEntry], most: int = MAX_MESSAGE_BYTES) -> list[Part]:
    """Return the messages of *entries*, each of *most* bytes at most but for one of a single entry."""
    if not entries:
        return []
    whole = Part(message(event, {"entries": entries}), entries)
    if len(entries) == 1 or len(whole.message.data) <= most:
        return [whole]
    half = len(entries) // 2
    return [*parts(event, entries[:half], most), *parts(event, entries[half:], most)]
