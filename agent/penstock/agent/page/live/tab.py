"""One tab: where it stands in the logs, as one opaque id of an event stream, and what waits to be sent to it, within bounds."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import zlib
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.page.live.entries import Message, message
from penstock.agent.page.wire import AnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.agent.page.live.entries import LogEntry
    from penstock.proto.v1 import admin_pb2 as admin

MAX_ID_CHARACTERS = 32 * 1024
"""Maximum characters of an id; positions of some thousand agents."""
MAX_AGENTS = 4_096

WHOLE = 1 << 32
"""The place behind all entries of a batch."""
MAX_BEHIND = 20_000
"""Batches that a tab may have missed; beyond them it goes on later, and a message says so."""

_MAX_BYTES = 1 << 20
_UINT64 = 1 << 64

MAX_WAITING_BYTES = 512 * 1024
"""Bytes that may wait for a tab; one that has not read so much is slow."""

# What is sent as a whole: the newest is enough.
_WHOLE = frozenset({"screen", "map"})


class Position(NamedTuple):
    """The place of an entry in one log: the batch, and the entry in it."""

    batch: int
    entry: int


# By the agent's name; an agent's own page has the name "".
Positions = dict[str, Position]


def of_entry(entry: admin.LoggedEvent) -> tuple[str, Position]:
    """Return whose log an entry is of, and where."""
    return entry.agent, Position(entry.batch, entry.index)


def ends(status: admin.AgentStatus) -> Positions:
    """Return the ends of the logs: of an agent, or of all agents of a relay that answer."""
    if not status.agents and not status.state_dir:
        # A relay without agents.
        return {}
    if not status.agents:
        return {"": Position(status.log_last, WHOLE)}
    return {
        each.name: Position(each.status.log_last, WHOLE) for each in status.agents if each.HasField("status")
    }


def begins(status: admin.AgentStatus) -> dict[str, int]:
    """Return the first batch of each log."""
    if not status.agents:
        return {"": status.log_first}
    return {each.name: each.status.log_first for each in status.agents if each.HasField("status")}


def written(positions: Mapping[str, Position]) -> str:
    """Return the id of *positions*."""
    return _written(tuple(sorted(positions.items())))


# Nearly all tabs stand at the same place.
@lru_cache(maxsize=4)
def _written(places: tuple[tuple[str, Position], ...]) -> str:
    text = json.dumps({name: list(place) for name, place in places}, separators=(",", ":"))
    return base64.urlsafe_b64encode(zlib.compress(text.encode("utf-8", "replace"))).decode().rstrip("=")


def read(text: str) -> Positions:
    """Read an id.

    Raises:
        AnswerError: it is none.

    """
    try:
        return {name: _position(place) for name, place in _unpacked(text).items()}
    except (ValueError, TypeError, RecursionError, binascii.Error, zlib.error):
        raise AnswerError(
            400,
            "the position of this tab is not known here (its Last-Event-ID is from another server); it starts over",
        ) from None


def _unpacked(text: str) -> dict[str, object]:
    if len(text) > MAX_ID_CHARACTERS:
        raise ValueError("too long")
    unpacker = zlib.decompressobj()
    packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    found = json.loads(unpacker.decompress(packed, _MAX_BYTES))
    if not unpacker.eof or not isinstance(found, dict) or len(found) > MAX_AGENTS:
        raise ValueError("no positions")
    return found


def resumed(after: Positions, last: Positions, first: Mapping[str, int]) -> tuple[Positions, list[str]]:
    """Return where a tab goes on that has come to *after*, and what it misses, in sentences.

    Args:
        last: the ends of the logs, of agents that answer.
        first: the first batch of each.

    """
    # An agent that has come meanwhile is shown from now on.
    start, sentences = {**last, **after}, []
    for name, place in after.items():
        if name not in last:
            continue
        whose, end = f"the journal of agent {name}" if name else "the journal", last[name].batch
        least = max(first.get(name, 0), end - MAX_BEHIND)
        if place.batch > end:
            start[name] = Position(0, 0)
            sentences.append(f"{whose} was replaced; the new one is shown from its beginning")
        elif least > place.batch + 1:
            start[name] = Position(least - 1, WHOLE)
            sentences.append(
                f"entries of {whose} between the batches {place.batch} and {least} are not shown: they were deleted, or "
                "are too many; 'agentctl get events' lists what there is"
            )
    return start, sentences


def _position(place: object) -> Position:
    match place:
        case [int(batch), int(index)] if 0 <= batch < _UINT64 and 0 <= index <= WHOLE:
            return Position(batch, index)
    raise ValueError("no position")


class Tab:
    """What is to be sent to one tab.

    Attributes:
        positions: where it stands, with all that waits; None before it is known.
        ended: it gets nothing but a goodbye any more.

    """

    def __init__(self) -> None:
        self.positions: Positions | None = None
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self.ended = False

    def put(self, item: Message) -> None:
        """Add a message. A screen and a map take the place of one that waits; what does not fit ends the tab."""
        if self.ended:
            return
        if item.event in _WHOLE:
            self._drop(item.event)
        if self._bytes + len(item.data) > MAX_WAITING_BYTES:
            self.end(
                "slow",
                "this tab does not read what it is sent, so it was let go; it connects again by itself",
            )
            return
        self._waiting.append(item)
        self._bytes += len(item.data)
        self._wake.set()

    def put_entries(self, entries: Sequence[tuple[str, Position, LogEntry]], shared: Message | None) -> None:
        """Add the entries that the tab does not have yet.

        Args:
            entries: of a part, each with its log and its place there.
            shared: their message for a tab that has none of them; None to make one.

        """
        if self.positions is None:
            return
        new = [each for each in entries if each[1] > self.positions.get(each[0], (-1, -1))]
        if not new:
            return
        self.positions |= {name: place for name, place, _ in new}
        if shared is None or len(new) < len(entries):
            shared = message("log", {"entries": [entry for _, _, entry in new]})
        self.put(Message("log", shared.data, written(self.positions)))

    def end(self, reason: str, sentence: str) -> None:
        """Drop all that waits, and say why the tab ends. Idempotent."""
        if self.ended:
            return
        self.ended = True
        self._waiting.clear()
        self._waiting.append(message("bye", {"reason": reason, "sentence": sentence}))
        self._wake.set()

    async def next(self) -> Message | None:
        """Return the next message; None after the last one."""
        while not self._waiting:
            if self.ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        item = self._waiting.popleft()
        self._bytes = max(0, self._bytes - len(item.data))
        return item

    def _drop(self, event: str) -> None:
        for item in [each for each in self._waiting if each.event == event]:
            self._waiting.remove(item)
            self._bytes -= len(item.data)
