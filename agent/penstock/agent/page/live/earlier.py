"""The newest failures and changes from before a tab was opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.page.live.entries import KINDS, log_entry
from penstock.agent.page.live.messages import parts
from penstock.agent.page.wire import AnswerError
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.page.live.messages import Message
    from penstock.agent.page.wire import AdminCalls

_MAX_ENTRIES = 100


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
