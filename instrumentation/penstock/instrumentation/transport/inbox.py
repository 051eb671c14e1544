"""The messages of a background thread's inbox."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any


class Tag(Enum):
    """The kind of a message."""

    WAKE = auto()
    STOP = auto()
    PARK = auto()
    RESUME = auto()
    RECONNECT = auto()
    FLUSH = auto()
    ANSWER = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of an inbox.

    Attributes:
        tag: its kind.
        sender: the stream that put an ANSWER or ENDED, compared by identity; None on other kinds.
        content: what an ANSWER, ENDED or FLUSH carries.

    """

    tag: Tag
    sender: object = None
    content: Any = None
