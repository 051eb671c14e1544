"""The table of peers by engines: the worst of both. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.badness import badness, list_place
from penstock.agent.page.screen.model import PeerCell, Peers, PeerTableRow
from penstock.agent.page.wire import about, plain
from penstock.agent.views import text
from penstock.agent.views.peers import condition_word, peer_name, quarantine_words
from penstock.proto.names import label
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.agent.page.screen.model import ScreenAnswers

MOST_PEERS = 30
MOST_ENGINES = 12
_NONE = "none"


def peer_table(answers: ScreenAnswers, *, between: Callable[[], None] = lambda: None) -> Peers:
    """Return the table; the agent's order is the worst first, and it stays.

    The answer may have only the rows of the table, and the first of each peer and engine of it. *between* is called
    after each row.
    """
    if answers.peers is None:
        return Peers((), (), 0, 0, answers.trouble or "the agent has not answered yet")
    items = answers.peers.peers
    names = list(dict.fromkeys(item.peer.address for item in items))
    if not names:
        return Peers((), (), 0, 0, _nothing(answers))
    shown = names[:MOST_PEERS]
    wanted = set(shown)
    found: dict[str, dict[str, admin.PeerSummary]] = {name: {} for name in shown}
    for item in items:
        if item.peer.address in wanted:
            found[item.peer.address].setdefault(text.engine(item.key), item)
    engines = _worst_engines(items)
    between()
    table: list[PeerTableRow] = []
    for name in shown:
        table.append(_row(name, found[name], engines))
        between()
    total = answers.peers.total_peers or (None if answers.peers.total > len(items) else len(names))
    left = None if total is None else total - len(table)
    return Peers(tuple(map(plain, engines)), tuple(table), total, left, "")


def _worst_engines(items: Iterable[admin.PeerSummary]) -> tuple[str, ...]:
    """Return the engines, those with the worst peers first, then by name."""
    places: dict[tuple[str, str], tuple[int, int]] = {}
    for item in items:
        key, place = (item.key.server, item.key.engine), list_place(item.condition, item.peer.address)
        places[key] = min(place, places.get(key, place))
    order = sorted(places, key=lambda key: (places[key], key))[:MOST_ENGINES]
    return tuple(f"{server}/{engine}" if server else engine or text.NONE for server, engine in order)


def _row(name: str, by_engine: dict[str, admin.PeerSummary], engines: tuple[str, ...]) -> PeerTableRow:
    first, line = next(iter(by_engine.values())), about("get", "peers", name=name)
    return PeerTableRow(
        peer=plain(peer_name(first) or name),
        address=plain(name),
        worst=_condition(_worst(by_engine, engines)),
        command=about("describe", "peer", name=name),
        cells=tuple(_cell(engine, by_engine.get(engine), line) for engine in engines),
    )


def _worst(by_engine: Mapping[str, admin.PeerSummary], engines: Iterable[str]) -> int:
    found = max((item.condition for item in by_engine.values()), key=badness)
    if badness(found):
        return found
    # An answer has only some of the rows of a peer that is well: those of the table.
    cells = [by_engine[engine].condition for engine in engines if engine in by_engine]
    return admin.PEER_CONDITION_OK if admin.PEER_CONDITION_OK in cells else max(cells, default=0)


def _condition(number: int) -> str:
    return label(admin.PeerCondition, number) if number else _NONE


def _cell(engine: str, item: admin.PeerSummary | None, line: str) -> PeerCell:
    if item is None:
        return PeerCell(plain(engine), _NONE, "", "", 0, None, None, 0, 0, line)
    return PeerCell(
        engine=plain(engine),
        condition=_condition(item.condition),
        text=plain(_words(item), 80),
        reason=plain(item.condition_reason, 160),
        failures_last_minute=item.failures_last_minute,
        p99=_p99(item.waits.last_minute),
        p99_before=_p99(item.waits.hour_before),
        in_flight=item.in_flight,
        deferred=item.deferred,
        command=line,
    )


def _words(item: admin.PeerSummary) -> str:
    """Return what the cell says: the condition, and what proves it."""
    parts = [condition_word(item).replace("_", " ")]
    if item.failures_last_minute:
        parts.append(f"{item.failures_last_minute} failed")
    if item.deferred:
        parts.append(f"{item.deferred} waiting")
    if item.waits.last_minute.count:
        parts.append(text.span_of_time(item.waits.last_minute.p99_seconds))
    if item.condition == admin.PEER_CONDITION_QUARANTINED:
        parts[0] = quarantine_words(item.status)
    return ", ".join(parts)


def _p99(window: admin.DurationWindow) -> float | None:
    return window.p99_seconds if window.count else None


def _nothing(answers: ScreenAnswers) -> str:
    if answers.peers is not None and answers.peers.left_out:
        return "no peer is active; 'agentctl get peers --state all' lists the retired ones"
    if answers.engines is not None and not answers.engines.engines:
        return "no engine has connected, so no peer is known"
    return "no engine has named a peer: nothing has been moved yet"
