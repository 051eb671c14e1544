"""The signals of all tabs: the last 15 minutes for one that joins, and then the newest slots, as long as there are tabs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from penstock.agent.page.live.entries import Message
from penstock.agent.page.screen import signals_message
from penstock.agent.page.wire import AnswerError, encode
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.page.wire import AdminCalls

_log = structlog.get_logger(__name__)

_EVERY_SECONDS: Final = 5.0
# Slots of entries that may come late are told again.
_AGAIN_SECONDS: Final = 25


async def ask_signals(calls: AdminCalls, seconds: int) -> list[Message]:
    """Return the one message of the last *seconds*; none where nobody knows them."""
    return await _asked(calls, seconds, whole=True)


async def keep_telling(calls: AdminCalls, publish: Callable[[Message], None]) -> None:
    """Give the newest slots to *publish* every five seconds, with some before them; until cancelled."""
    while True:
        await asyncio.sleep(_EVERY_SECONDS)
        try:
            for item in await _asked(calls, _AGAIN_SECONDS, whole=False):
                publish(item)
        except Exception:  # noqa: BLE001  (a message that fails leaves slots that the next one tells)
            _log.exception("the signals cannot be told; please report it")


async def _asked(calls: AdminCalls, seconds: int, *, whole: bool) -> list[Message]:
    request = admin.GetSignalsRequest()
    request.since.FromSeconds(seconds)
    try:
        answer = await calls.call("GetSignals", request)
    except AnswerError:
        # The screen says that nobody answers.
        return []
    return [Message("signals", await asyncio.to_thread(lambda: encode(signals_message(answer, whole=whole))))]
