"""Events of the log as rows: what ``agentctl get events`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.page.details.arguments import engine_of, name_of, number_of, selector_of
from penstock.agent.page.details.detail import Detail, Link, table_section
from penstock.agent.page.wire import AdminCalls, AnswerError, about, command, plain
from penstock.agent.views.events import event_rows
from penstock.proto.names import number
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import FailureMode

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_SECONDS = 30 * 86_400
_MAX_EVENTS = 1_000


async def events_detail(calls: AdminCalls, query: Mapping[str, str]) -> Detail:
    """Return the newest events that fit, oldest first."""
    request, words = events_request(query)
    found = await calls.call("ListEvents", request)
    links = [
        Link("request", id=item.event.request_id)
        if item.event.request_id
        else Link("engine", engine=plain(_key(item)))
        for item in found.events
    ]
    commands = [
        about("explain", name=item.event.request_id) if item.event.request_id else command(*words)
        for item in found.events
    ]
    cut = "older events are not shown; ask for less time, or one peer" if found.truncated else ""
    nothing = "" if found.events else "no event fits"
    table = table_section(
        "Events",
        event_rows(found.events, calls.clock()),
        sentence=cut or nothing,
        links=links,
        commands=commands,
    )
    return Detail("Events", (), command(*words), (table,))


def events_request(query: Mapping[str, str]) -> tuple[admin.ListEventsRequest, list[str]]:
    """Return the request of a query, and the words of the command that asks the same. Pure.

    Raises:
        AnswerError: the query is wrong.

    """
    key = engine_of(query, "engine")
    request = admin.ListEventsRequest(
        selector=selector_of(key),
        peer=name_of(query, "peer", needed=False),
        request_id=name_of(query, "request", needed=False),
        limit=max(1, number_of(query, "limit", 100, _MAX_EVENTS)),
    )
    words = ["get", "events", f"--limit={request.limit}"]
    words += [f"--peer={request.peer}"] if request.peer else []
    words += [f"--request={request.request_id}"] if request.request_id else []
    if kind := name_of(query, "kind", needed=False):
        request.kinds.append(kind)
        words.append(f"--kind={kind}")
    if mode := name_of(query, "mode", needed=False):
        try:
            request.mode = number(FailureMode, mode)  # type: ignore[assignment]
        except (KeyError, ValueError):
            raise AnswerError(400, f"{mode!r} is no failure mode") from None
        words.append(f"--mode={mode}")
    if seconds := number_of(query, "seconds", 0, _MAX_SECONDS):
        request.since.FromSeconds(seconds)
        words.append(f"--since={seconds}s")
    return request, words


def _key(item: admin.LoggedEvent) -> str:
    return f"{item.key.server}/{item.key.engine}" if item.key.server else item.key.engine
