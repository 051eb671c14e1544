"""The tables of the screen: peers by engines, who waits, the policy by field, the engines. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.badness import badness, list_place
from penstock.agent.page.screen.model import (
    Engines,
    EngineTableRow,
    PeerCell,
    Peers,
    PeerTableRow,
    PolicyField,
    PolicyTable,
    WaitRow,
    Waits,
)
from penstock.agent.page.wire import about, hidden_name, milliseconds, plain
from penstock.agent.views import text
from penstock.agent.views.engines import role_words, status_words
from penstock.agent.views.peers import condition_word, peer_name, quarantine_words
from penstock.agent.views.queues import nothing_deferred
from penstock.proto.names import label
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.agent.page.screen.model import ScreenAnswers

MOST_PEERS = 30
MOST_ENGINES = 12
_NONE = "none"
_MOST_WAITS = 30
_MOST_FIELDS = 40
_NAMED = 12
_MOST_ENGINE_ROWS = 60


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
        return Peers((), (), 0, 0, _no_peers(answers))
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
        table.append(_peer_row(name, found[name], engines))
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


def _peer_row(name: str, by_engine: dict[str, admin.PeerSummary], engines: tuple[str, ...]) -> PeerTableRow:
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
        text=plain(_cell_words(item), 80),
        reason=plain(item.condition_reason, 160),
        failures_last_minute=item.failures_last_minute,
        p99=_p99(item.waits.last_minute),
        p99_before=_p99(item.waits.hour_before),
        in_flight=item.in_flight,
        deferred=item.deferred,
        command=line,
    )


def _cell_words(item: admin.PeerSummary) -> str:
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


def _no_peers(answers: ScreenAnswers) -> str:
    if answers.peers is not None and answers.peers.left_out:
        return "no peer is active; 'agentctl get peers --state all' lists the retired ones"
    if answers.engines is not None and not answers.engines.engines:
        return "no engine has connected, so no peer is known"
    return "no engine has named a peer: nothing has been moved yet"


def waits(answers: ScreenAnswers) -> Waits:
    """Return the requests that have waited longest, and how many there are."""
    if answers.waits is None:
        return Waits((), 0, 0, answers.trouble or "the agent has not answered yet")
    found = answers.waits
    rows = tuple(_wait_row(item) for item in found.requests[:_MOST_WAITS])
    unnamed = found.unnamed_deferred
    total = max(len(found.requests) + unnamed, _counted(answers))
    sentence = (
        "" if rows else nothing_deferred(found) if not total else f"{total} wait whose ids are not in the log"
    )
    return Waits(rows, total, unnamed, sentence)


def _counted(answers: ScreenAnswers) -> int:
    """Return what the engines count as deferred; the list of requests has a limit."""
    if answers.engines is None:
        return 0
    return sum(entry.count for item in answers.engines.engines for entry in item.deferred)


def _wait_row(item: admin.RequestSummary) -> WaitRow:
    reason = text.word(common.DeferralReason, item.deferred)
    peer = f" from {item.peer.address}" if item.peer.address else ""
    return WaitRow(
        request=plain(item.request_id),
        engine=plain(text.engine(item.key)),
        peer=plain(item.peer.address),
        reason=reason,
        since=milliseconds(item.since.ToNanoseconds()),
        sentence=plain(text.folded(f"waits for {reason}{peer}")),
        command=about("explain", name=item.request_id),
        request_id=hidden_name(item.request_id),
    )


class _Given(NamedTuple):
    """What tells rows apart."""

    field: str
    value: str
    policy: str
    in_force: bool


def policy_table(answers: ScreenAnswers) -> PolicyTable:
    """Return the fields that policies set, the most common first."""
    if answers.engines is None:
        return PolicyTable((), 0, answers.trouble or "the agent has not answered yet")
    engines: defaultdict[_Given, list[str]] = defaultdict(list)
    sources: dict[_Given, tuple[str, int]] = {}
    for item in answers.engines.engines:
        merged = answers.effective.get(item.wanted_hash)
        if merged is None:
            continue
        names = {each.name: each for each in merged.policies}
        for field in merged.fields:
            given = _Given(field.field, field.new_value, field.new_policy, item.in_sync)
            engines[given].append(text.engine(item.key))
            source = names.get(field.new_policy)
            sources[given] = ("", 0) if source is None else (source.author, source.changed_time_unix_nano)
    order = sorted(
        engines, key=lambda given: (given.in_force, -len(engines[given]), given.field, given.value)
    )
    rows = tuple(_policy_row(given, engines[given], *sources[given]) for given in order[:_MOST_FIELDS])
    return PolicyTable(rows, len(order), "" if rows else _no_policy(answers.engines.engines))


def _policy_row(given: _Given, engines: list[str], author: str, changed: int) -> PolicyField:
    return PolicyField(
        field=plain(given.field),
        value=plain(given.value, 120),
        policy=plain(given.policy),
        author=plain(author, 120),
        changed=milliseconds(changed) if changed else None,
        engines=len(engines),
        engine_keys=tuple(map(plain, engines[:_NAMED])),
        in_force=given.in_force,
        command=about("describe", "policy", name=given.policy),
    )


def _no_policy(engines: object) -> str:
    if not engines:
        return "no engine has connected; policies wait for it"
    return "no policy selects an engine; vLLM's own configuration is in force"


def hashes(engines: admin.ListEnginesResponse) -> dict[str, admin.Engine]:
    """Return one engine for each hash of a policy that engines are to have."""
    found: dict[str, admin.Engine] = {}
    for item in engines.engines:
        if item.wanted_hash:
            found.setdefault(item.wanted_hash, item)
    return found


def engine_table(answers: ScreenAnswers, *, between: Callable[[], None] = lambda: None) -> Engines:
    """Return the engines; *between* is called after each row."""
    items = [] if answers.engines is None else list(answers.engines.engines)
    items.sort(key=lambda item: (item.connected, item.in_sync, not item.stalls, text.engine(item.key)))
    shown: list[EngineTableRow] = []
    for item in items[:_MOST_ENGINE_ROWS]:
        between()
        shown.append(_engine_row(item, answers.now))
    return Engines(tuple(shown), len(items), len(items) - len(shown))


def _engine_row(item: admin.Engine, now: float) -> EngineTableRow:
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
        sentence=plain(_engine_sentence(item, now)),
        command=about("describe", "engine", name=name),
    )


def _engine_sentence(item: admin.Engine, now: float) -> str:
    if item.stalls:
        return text.folded(item.stalls[0].sentence)
    if item.HasField("policy") and item.policy.last_error:
        return text.folded(item.policy.last_error)
    return status_words(item, now)
