"""What the log says of answers that are no refusals: one line for all engines that come to the same within a moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from penstock.agent.policy.distribution.subscriber import Subscriber

MOMENT: Final = 0.5
"""Seconds that an answer waits for others; a change reaches all engines of a pod in less."""

_NAMED: Final = 16

_log = structlog.get_logger(__name__)


class AnswerLog:
    """Collects acknowledgements on the loop, so that hundreds that come at once do not wait for each other's line."""

    def __init__(self) -> None:
        self._engines: dict[tuple[str, bool], dict[str, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, subscriber: Subscriber) -> None:
        """Take the last answer of an engine; one that refuses is logged where it came."""
        answer = subscriber.answer
        if answer is None or answer.error:
            return
        self._engines.setdefault((answer.hash, answer.paused), {})[str(subscriber.target.key)] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MOMENT, self.flush)

    def flush(self) -> None:
        """Write what has come together."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        engines, self._engines = self._engines, {}
        for (hash_, paused), keys in engines.items():
            names = list(keys)
            more = {"more": len(names) - _NAMED} if len(names) > _NAMED else {}
            what = "pause acknowledged, which holds the policy back" if paused else "policy acknowledged"
            _log.info(what, engines=names[:_NAMED], hash=hash_, paused=paused, **more)
