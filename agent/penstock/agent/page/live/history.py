"""From before a tab was opened: the last minutes as counts, the newest failures and changes."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.agent.aio import ThreadYield
from penstock.agent.page.live.entries import KINDS, Message, log_entry, parts
from penstock.agent.page.wire import MAX_MESSAGE_BYTES, AdminCalls, AnswerError, encode, plain
from penstock.agent.views import text
from penstock.agent.views.events import event_peer
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.agent.page.wire import AdminCalls

MAX_SECONDS = 3_600
_MINUTE_NANO = 60 * 10**9
_MAX_EVENTS = 5_000
_FAILURE, _DEFERRAL = "transfer_failure", "deferral_start"
_NO_PEER = "-"


_MAX_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class MinuteCell:
    """What happened in a minute between an engine and a peer."""

    engine: str
    peer: str
    failures: int
    deferrals: int


@dataclass(frozen=True, slots=True)
class Minute:
    """A minute; *time*: its beginning, milliseconds since 1970."""

    time: float
    cells: tuple[MinuteCell, ...]


async def ask_history(calls: AdminCalls, seconds: int) -> list[Message]:
    """Return the one message of the last *seconds*, as far as the newest entries of the log reach."""
    request = admin.ListEventsRequest(kinds=[_FAILURE, _DEFERRAL], limit=_MAX_EVENTS)
    request.since.FromSeconds(seconds)
    try:
        found = (await calls.call("ListEvents", request)).events
    except AnswerError:
        found = []
    return [Message("history", await asyncio.to_thread(history, found, between=ThreadYield()))]


def history(found: Iterable[admin.LoggedEvent], *, between: Callable[[], None] = lambda: None) -> bytes:
    """Return the minutes of events as JSON of 64 KiB at most: where there is too much, the smallest counts are left out.

    *between* is called after each event.
    """
    counts: defaultdict[int, Counter[tuple[str, str, str]]] = defaultdict(Counter)
    for item in found:
        kind = item.event.WhichOneof("body")
        if kind in (_FAILURE, _DEFERRAL):
            peer = event_peer(item.event)
            key = (plain(text.engine(item.key), 120), "" if peer == _NO_PEER else plain(peer, 120), kind)
            counts[item.event.time_unix_nano // _MINUTE_NANO][key] += 1
        between()
    most = 200
    while len(encoded := encode({"minutes": _minutes(counts, most)})) > MAX_MESSAGE_BYTES and most:
        most //= 2
    return encoded


def _minutes(counts: dict[int, Counter[tuple[str, str, str]]], most: int) -> list[Minute]:
    return [
        Minute(minute * 60_000.0, tuple(_cells(counter, most)))
        for minute, counter in sorted(counts.items())[-60:]
    ]


def _cells(counter: Counter[tuple[str, str, str]], most: int) -> Iterable[MinuteCell]:
    pairs = Counter[tuple[str, str]]()
    for (engine, peer, _), count in counter.items():
        pairs[engine, peer] += count
    for (engine, peer), _ in pairs.most_common(most):
        yield MinuteCell(engine, peer, counter[engine, peer, _FAILURE], counter[engine, peer, _DEFERRAL])


async def ask_earlier(calls: AdminCalls, seconds: int) -> list[Message]:
    """Return the messages of the newest entries of the last *seconds*, the oldest first; none where the log gives none.

    They have no id. A tab asks for them once it follows the log, so an entry can come both ways; its position tells.
    """
    request = admin.ListEventsRequest(kinds=KINDS, limit=_MAX_ENTRIES)
    request.since.FromSeconds(seconds)
    try:
        found = (await calls.call("ListEvents", request)).events
    except AnswerError:
        return []
    return [part.message for part in parts("earlier", [log_entry(item) for item in found])]
