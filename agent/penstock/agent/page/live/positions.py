"""Where a tab stands in the logs of the agents, as one opaque id of an event stream. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.page.wire import AnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
