"""The engines, those in trouble first. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.page.screen.model import Engines, EngineTableRow
from penstock.agent.page.wire import about, milliseconds, plain
from penstock.agent.views import text
from penstock.agent.views.engines import role_words, status_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.page.screen.model import ScreenAnswers
    from penstock.proto.v1 import admin_pb2 as admin

MOST_ROWS = 60


def engine_table(answers: ScreenAnswers, *, between: Callable[[], None] = lambda: None) -> Engines:
    """Return the engines; *between* is called after each row."""
    items = [] if answers.engines is None else list(answers.engines.engines)
    items.sort(key=lambda item: (item.connected, item.in_sync, not item.stalls, text.engine(item.key)))
    shown: list[EngineTableRow] = []
    for item in items[:MOST_ROWS]:
        between()
        shown.append(_row(item, answers.now))
    return Engines(tuple(shown), len(items), len(items) - len(shown))


def _row(item: admin.Engine, now: float) -> EngineTableRow:
    name = text.engine(item.key)
    wanted = text.short_policies(item.wanted_policies, item.wanted_hash)
    return EngineTableRow(
        key=plain(name),
        role=role_words(item),
        model=plain(
            item.facts.model or next((each.hello.model for each in item.sources if each.hello.model), "")
        ),
        connected=item.connected,
        last_seen=milliseconds(item.last_seen.ToNanoseconds()) if item.HasField("last_seen") else None,
        policy=plain(wanted if item.in_sync or item.paused else f"wanted: {wanted}", 120),
        sentence=plain(_sentence(item, now)),
        command=about("describe", "engine", name=name),
    )


def _sentence(item: admin.Engine, now: float) -> str:
    if item.stalls:
        return text.folded(item.stalls[0].sentence)
    if item.HasField("policy") and item.policy.last_error:
        return text.folded(item.policy.last_error)
    return status_words(item, now)
