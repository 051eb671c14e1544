"""The table of peers by engines: the worst of both. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.ctl.render import latency, rows, text
from penstock.agent.page.screen.model import PeerCell, Peers, PeerTableRow
from penstock.agent.page.wire import about, plain
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.agent.page.screen.answers import ScreenAnswers

MOST_PEERS = 30
MOST_ENGINES = 12

_NONE, _OK, _FAILING = "none", "ok", "failing"
# Conditions beside which nothing worse is to be said: what a peer with other weights seems to be.
_WELL = frozenset({_NONE, _OK})
_WEIGHTS_DIFFER = "weights_differ"
_CONDITIONS = {
    admin.PEER_CONDITION_OK: _OK,
    admin.PEER_CONDITION_QUARANTINED: "quarantined",
    admin.PEER_CONDITION_SLOW: "slow",
    admin.PEER_CONDITION_FAILING: _FAILING,
    admin.PEER_CONDITION_HANGING: "hanging",
}


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
    wrong = _other_weights(answers.diagnosis)
    between()
    table: list[PeerTableRow] = []
    for name in shown:
        table.append(_row(name, found[name], engines, wrong))
        between()
    total = answers.peers.total_peers or (None if answers.peers.total > len(items) else len(names))
    left = None if total is None else total - len(table)
    return Peers(tuple(map(plain, engines)), tuple(table), total, left, "")


def _worst_engines(items: Iterable[admin.PeerSummary]) -> tuple[str, ...]:
    """Return the engines, those with the worst peers first, then by name."""
    worst: dict[tuple[str, str], int] = {}
    for item in items:
        key = (item.key.server, item.key.engine)
        if item.condition > worst.get(key, -1):
            worst[key] = item.condition
    order = sorted(worst, key=lambda key: (-worst[key], key))[:MOST_ENGINES]
    return tuple(f"{server}/{engine}" if server else engine or text.NONE for server, engine in order)


def _other_weights(diagnosis: admin.Diagnosis | None) -> Mapping[tuple[str, str], str]:
    """Return the sentences about peers that have loaded other weights, by peer and engine: they answer, and wrongly."""
    causes = diagnosis.causes if diagnosis is not None else ()
    return {
        (cause.peer, text.engine(key)): cause.sentence
        for cause in causes
        if cause.kind == _WEIGHTS_DIFFER and cause.peer
        for key in cause.engines
    }


def _row(
    name: str,
    by_engine: dict[str, admin.PeerSummary],
    engines: tuple[str, ...],
    wrong: Mapping[tuple[str, str], str],
) -> PeerTableRow:
    first, line = next(iter(by_engine.values())), about("get", "peers", name=name)
    worst = _CONDITIONS.get(max(item.condition for item in by_engine.values()), _NONE)
    sentences = {engine: wrong[name, engine] for engine in by_engine if (name, engine) in wrong}
    return PeerTableRow(
        peer=plain(name),
        address=plain(first.peer.address),
        worst=_FAILING if sentences and worst in _WELL else worst,
        command=about("describe", "peer", name=name),
        cells=tuple(
            _cell(engine, by_engine.get(engine), line, sentences.get(engine, "")) for engine in engines
        ),
    )


def _cell(engine: str, item: admin.PeerSummary | None, line: str, wrong: str) -> PeerCell:
    if item is None:
        return PeerCell(plain(engine), _NONE, "", "", 0, None, None, 0, 0, line)
    condition, words, reason = _CONDITIONS.get(item.condition, _NONE), _words(item), item.condition_reason
    if wrong and condition in _WELL:
        condition, words, reason = _FAILING, "other weights", wrong
    return PeerCell(
        engine=plain(engine),
        condition=condition,
        text=plain(words, 80),
        reason=plain(reason, 160),
        failures_last_minute=item.failures_last_minute,
        p99=_p99(item.waits.last_minute),
        p99_before=_p99(item.waits.hour_before),
        in_flight=item.in_flight,
        deferred=item.deferred,
        command=line,
    )


def _words(item: admin.PeerSummary) -> str:
    """Return what the cell says: the condition, and what proves it."""
    parts = [latency.condition(item)]
    if item.failures_last_minute:
        parts.append(f"{item.failures_last_minute} failed")
    if item.deferred:
        parts.append(f"{item.deferred} waiting")
    if item.waits.last_minute.count:
        parts.append(text.span_of_time(item.waits.last_minute.p99_seconds))
    if item.condition == admin.PEER_CONDITION_QUARANTINED:
        parts[0] = rows.quarantine_words(item.status)
    return ", ".join(parts)


def _p99(window: admin.DurationWindow) -> float | None:
    return window.p99_seconds if window.count else None


def _nothing(answers: ScreenAnswers) -> str:
    if answers.peers is not None and answers.peers.left_out:
        return "no peer is active; 'agentctl get peers --state all' lists the retired ones"
    if answers.engines is not None and not answers.engines.engines:
        return "no engine has connected, so no peer is known"
    return "no engine has named a peer: nothing has been moved yet"
