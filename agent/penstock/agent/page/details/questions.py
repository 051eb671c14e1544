"""Answers to what a click asks for: policies and events here, the others beside; and which question asks for which."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.agent.page.details.arguments import engine_of, name_of, number_of, selector_of
from penstock.agent.page.details.condition import condition_detail
from penstock.agent.page.details.detail import (
    Detail,
    Link,
    fitted,
    table_section,
)
from penstock.agent.page.details.engine import engine_detail
from penstock.agent.page.details.peer import peer_detail
from penstock.agent.page.details.policy import policy_detail
from penstock.agent.page.details.request import request_detail
from penstock.agent.page.screen import signals_message
from penstock.agent.page.wire import AdminCalls, AnswerError, about, command, encode, plain
from penstock.agent.views import text
from penstock.agent.views.events import event_rows
from penstock.agent.views.policies import policy_rows
from penstock.proto.names import number
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import FailureMode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

_MAX_SECONDS = 30 * 86_400
_MAX_EVENTS = 1_000
_MAX_CHANGES = 20
_MAX_MANIFEST = 20_000


async def _events_detail(calls: AdminCalls, query: Mapping[str, str]) -> Detail:
    """Return the newest events that fit, oldest first."""
    request, words = _events_request(query)
    found = await calls.call("ListEvents", request)
    links = [
        Link("request", id=item.event.request_id)
        if item.event.request_id
        else Link("engine", engine=plain(_engine_of_event(item)))
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


def _events_request(query: Mapping[str, str]) -> tuple[admin.ListEventsRequest, list[str]]:
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


def _engine_of_event(item: admin.LoggedEvent) -> str:
    return f"{item.key.server}/{item.key.engine}" if item.key.server else item.key.engine


async def _policies_detail(calls: AdminCalls, _query: Mapping[str, str]) -> Detail:
    """Return the table of ``agentctl get policy -o wide``."""
    found = list((await calls.call("ListPolicies", admin.ListPoliciesRequest())).policies)
    links = [Link("policy", name=item.name) for item in found]
    commands = [about("describe", "policy", name=item.name) for item in found]
    nothing = "" if found else "no policies; vLLM's own configuration is in force"
    table = table_section(
        "Policies", policy_rows(found, calls.clock()), sentence=nothing, links=links, commands=commands
    )
    return Detail("Policies", (), command("get", "policy"), (table,))


_QUESTIONS: dict[str, Callable[[AdminCalls, Mapping[str, str]], Awaitable[Detail]]] = {
    "peer": peer_detail,
    "engine": engine_detail,
    "policies": _policies_detail,
    "policy": policy_detail,
    "events": _events_detail,
}
_REQUEST, _SIGNALS, _CONDITION = "request", "signals", "condition"


async def _ask_signals(calls: AdminCalls, query: Mapping[str, str]) -> bytes:
    """Return the signals of one engine, or of all."""
    key = engine_of(query, "engine")
    answer = await calls.call("GetSignals", admin.GetSignalsRequest(selector=selector_of(key)))
    named = "" if key is None else plain(text.engine(key))
    return await asyncio.to_thread(lambda: encode(signals_message(answer, named)))


async def ask_detail(
    calls: AdminCalls,
    kind: str,
    query: Mapping[str, str],
    trace_url_template: str = "",
    since: float | None = None,
) -> bytes:
    """Return the answer to a question as JSON of 64 KiB at most.

    *trace_url_template* is where the operator's trace backend shows a trace, with ``{trace_id}``; empty for nowhere.
    *since*: seconds that the page's verdict is about, None for those of ``agentctl diagnose``.

    Raises:
        AnswerError: it has no answer, or there is no such question.

    """
    if kind == _SIGNALS:
        return await _ask_signals(calls, query)
    if kind == _REQUEST:
        return fitted(await request_detail(calls, query, trace_url_template))
    if kind == _CONDITION:
        return fitted(await condition_detail(calls, query, since))
    ask = _QUESTIONS.get(kind)
    if ask is None:
        kinds = ", ".join((*_QUESTIONS, _REQUEST, _CONDITION, _SIGNALS))
        raise AnswerError(404, f"there is no /api/{kind[:100]}; use one of {kinds}")
    return fitted(await ask(calls, query))
