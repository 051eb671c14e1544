"""Which question asks for which detail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.page.details.detail import Detail, fitted
from penstock.agent.page.details.engine import engine_detail
from penstock.agent.page.details.events import events_detail
from penstock.agent.page.details.peer import peer_detail
from penstock.agent.page.details.policies import policies_detail, policy_detail
from penstock.agent.page.details.request import request_detail
from penstock.agent.page.wire import AdminCalls, AnswerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

_QUESTIONS: dict[str, Callable[[AdminCalls, Mapping[str, str]], Awaitable[Detail]]] = {
    "request": request_detail,
    "peer": peer_detail,
    "engine": engine_detail,
    "policies": policies_detail,
    "policy": policy_detail,
    "events": events_detail,
}


async def ask_detail(calls: AdminCalls, kind: str, query: Mapping[str, str]) -> bytes:
    """Return the answer to a question as JSON of 64 KiB at most.

    Raises:
        AnswerError: it has no answer, or there is no such question.

    """
    ask = _QUESTIONS.get(kind)
    if ask is None:
        raise AnswerError(404, f"there is no /api/{kind[:100]}; use one of {', '.join(_QUESTIONS)}")
    return fitted(await ask(calls, query))
