"""What a router is told: the health of peers as engines see it, and the pairs that must not be formed. Pure.

The state of a peer is what ``ListPeers`` says of it. Nothing is judged here; what is not known is never ``ok``.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.views import text
from penstock.agent.views.peers import pair_reason, quarantine_words
from penstock.agent.views.router_feed.model import (
    MAX_MISSING,
    MAX_READERS,
    MAX_ROWS,
    VERSION,
    AgentFeed,
    Avoided,
    FeedEndpoint,
    FeedRow,
    RelayFeed,
    Side,
)
from penstock.agent.views.router_feed.readings import (
    RANKS,
    FeedAnswers,
    Lookups,
    SeenPeer,
    known_of,
    seen_of,
)
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.timestamp_pb2 import Timestamp
    from penstock.agent.views.router_feed.model import Confidence, State
    from penstock.proto.v1.common_pb2 import EngineKey

MAX_BODY_BYTES: Final = 1 << 20
"""Maximum bytes of a document's JSON."""
_MAX_NAME: Final = 256
_MAX_WHY: Final = 300

# Only the diagnosis says these.
_JUDGED: Final = frozenset(
    {
        admin.PEER_CONDITION_INCOMPATIBLE,
        admin.PEER_CONDITION_OTHER_WEIGHTS,
        admin.PEER_CONDITION_SHARED_ID,
        admin.PEER_CONDITION_UNREACHABLE,
        admin.PEER_CONDITION_LOST,
        admin.PEER_CONDITION_WRONG_ENGINE,
    }
)
_CONFIDENCES: Final[dict[int, Confidence]] = {
    admin.DIAGNOSIS_CONFIDENCE_POSSIBLE: "possible",
    admin.DIAGNOSIS_CONFIDENCE_LIKELY: "likely",
    admin.DIAGNOSIS_CONFIDENCE_CERTAIN: "certain",
}


class _Combined(NamedTuple):
    """What the readers of one address say together; they are the worst first, and *states* are those that count."""

    address: str
    state: State
    states: Counter[State]
    readers: Sequence[SeenPeer]


def agent_feed(said: FeedAnswers, now: float, most: int = MAX_ROWS) -> AgentFeed:
    """Return what an agent says at *now*, seconds since the epoch, with *most* rows."""
    known = known_of(said)
    seen = seen_of(said, known)
    left_out = len(seen[most:]) + _unread(said)
    return AgentFeed(
        version=VERSION, kind="agent", generated=_rfc3339(now), truncated=left_out > 0, left_out=left_out,
        peers=[_row(each, known) for each in seen[:most]],
    )  # fmt: skip


def relay_feed(said: FeedAnswers, now: float, most: int = MAX_ROWS, *, by_agent: bool = False) -> RelayFeed:
    """Return what a relay says at *now*, seconds since the epoch, with *most* rows and as many pairs.

    With *by_agent* all readers of an agent count as one, in the state of most of them: one that lies has one vote.
    """
    known = known_of(said)
    seen = seen_of(said, known)
    by_address: dict[str, list[SeenPeer]] = {}
    for each in seen:
        by_address.setdefault(each.item.peer.address, []).append(each)
    endpoints: list[FeedEndpoint] = []
    shown = 0
    for found in sorted((_combined(*each, by_agent=by_agent) for each in by_address.items()), key=_place):
        readers = found.readers[: min(MAX_READERS, most - shown)]
        if readers:
            endpoints.append(_endpoint(found, [_row(each, known) for each in readers]))
            shown += len(readers)
    avoided = _avoided(said.pairs, known)
    left_out = len(seen) - shown + _unread(said) + len(avoided[most:]) + _uncompared(said, len(avoided))
    return RelayFeed(
        version=VERSION, kind="relay", generated=_rfc3339(now), truncated=left_out > 0, left_out=left_out,
        endpoints=endpoints, pairs_to_avoid=avoided[:most], missing=_missing(said.coverage),
    )  # fmt: skip


def bounded_json(make: Callable[[int], AgentFeed | RelayFeed]) -> tuple[bytes, bytes]:
    """Return the JSON of the longest feed of *make* that is within :data:`MAX_BODY_BYTES`, and the same without its time.

    *make* takes the most rows. What they are without the time tells whether two feeds say the same.
    """
    most = MAX_ROWS
    while True:
        feed = make(most)
        body = feed.model_dump_json(by_alias=True).encode()
        if len(body) <= MAX_BODY_BYTES or not most:
            return body, feed.model_dump_json(by_alias=True, exclude={"generated"}).encode()
        most //= 2


def _row(seen: SeenPeer, known: Lookups) -> FeedRow:
    item, state, why = seen
    quarantine = known.quarantines.get((item.key.server, item.key.engine, item.peer.address))
    until = None
    if state == "quarantined":
        why, until = _quarantined(item, quarantine)
    judged = state not in ("ok", "unknown", "quarantined")
    return FeedRow(
        reader=_side(item.key, known),
        source=_peer_side(item),
        state=state,
        condition=text.word(admin.PeerCondition, item.condition),
        since=_moment(item.condition_since)
        if item.HasField("condition_since") and state != "unknown"
        else None,
        until=until,
        share=_share(item),
        why=_why(why),
        confidence=_confidence(item, known) if judged else None,
    )


def _quarantined(item: admin.PeerSummary, order: admin.Quarantine | None) -> tuple[str, str | None]:
    """Return why a peer is in quarantine, and until when."""
    word = quarantine_words(item.status)
    if order is not None and order.HasField("until"):
        until = _moment(order.until)
    elif item.status.quarantine_until_unix_nano:
        until = _time(item.status.quarantine_until_unix_nano)
    else:
        until = None
    return (f"{word}: {order.reason}" if order is not None and order.reason else word), until


def _share(item: admin.PeerSummary) -> float | None:
    failed, succeeded = item.failures_last_minute, item.transfers.last_minute.count
    return round(failed / (failed + succeeded), 3) if failed + succeeded else None


def _confidence(item: admin.PeerSummary, known: Lookups) -> Confidence | None:
    number = known.causes.get(item.condition_reason) if item.condition_reason else None
    if number is None and item.condition in _JUDGED:
        number = known.about.get((item.key.server, item.key.engine, item.peer.address))
    return _CONFIDENCES.get(number) if number else None


def _combined(address: str, readers: Sequence[SeenPeer], *, by_agent: bool) -> _Combined:
    votes = _votes(readers) if by_agent else [each.state for each in readers]
    return _Combined(address, _of_most(votes), Counter(votes), readers)


def _votes(readers: Sequence[SeenPeer]) -> list[State]:
    """Return what each agent says; of an agent's own answer, what each of its servers says."""
    states: dict[str, list[State]] = {}
    for each in readers:
        # A relay puts the agent's name, which has no slash, before the server's.
        states.setdefault(each.item.key.server.partition("/")[0], []).append(each.state)
    return [_of_most(found) for found in states.values()]


def _of_most(states: Sequence[State]) -> State:
    """Return what most of those say that know; of two that are as many, the worse."""
    lately = Counter(states)
    del lately["unknown"]
    return max(lately, key=lambda each: (lately[each], RANKS[each])) if lately else "unknown"


def _place(found: _Combined) -> tuple[int, bool, str]:
    rank, is_not_well = RANKS[found.state]
    return -rank, not is_not_well, found.address


def _endpoint(found: _Combined, rows: list[FeedRow]) -> FeedEndpoint:
    """Return an endpoint that shows *rows*."""
    named = (each.item for each in found.readers if each.item.HasField("engine"))
    return FeedEndpoint(
        source=_peer_side(next(named, found.readers[0].item)),
        state=found.state,
        agree=0 if found.state == "unknown" else found.states[found.state],
        read_lately=found.states.total() - found.states["unknown"],
        states={each: found.states[each] for each in sorted(found.states)},
        readers=rows,
    )


def _peer_side(item: admin.PeerSummary) -> Side:
    return Side(
        engine=_name(text.engine(item.engine)) if item.HasField("engine") else None,
        address=_name(item.peer.address),
    )


def _avoided(pairs: admin.ListPairsResponse | None, known: Lookups) -> list[Avoided]:
    return [
        Avoided(reader=_side(pair.key, known), source=_source(pair, known), why=_why(pair_reason(pair)))
        for pair in (() if pairs is None else pairs.pairs)
        if pair.compatible == admin.PAIR_COMPATIBILITY_NO or pair.weights == admin.PAIR_WEIGHTS_DIFFER
    ]


def _source(pair: admin.Pair, known: Lookups) -> Side:
    if not pair.HasField("peer_key"):
        return Side(engine=None, address=_name(pair.peer.address))
    side = _side(pair.peer_key, known)
    return side.model_copy(update={"address": _name(pair.peer.address)}) if pair.peer.address else side


def _uncompared(said: FeedAnswers, avoided: int) -> int:
    """Return the pairs that the list of pairs has left out and that may be among those to avoid: the worst come first."""
    if said.pairs is None or avoided < len(said.pairs.pairs):
        return 0
    return said.pairs.left_out


def _unread(said: FeedAnswers) -> int:
    """Return the peers that the answer has left out."""
    return max(0, said.peers.total - len(said.peers.peers))


def _missing(coverage: admin.RelayCoverage | None) -> list[str]:
    if coverage is None:
        return []
    named = [_why(f"{each.name}: {each.reason}") for each in coverage.missing[:MAX_MISSING]]
    more = coverage.asked - coverage.answered - len(named)
    return [*named, f"and {text.count(more, 'agent')} more"] if more > 0 else named


def _side(key: EngineKey, known: Lookups) -> Side:
    name = text.engine(key)
    return Side(engine=_name(name), address=_name(known.addresses.get(name)))


def _name(said: str | None) -> str | None:
    return text.printable(said[:_MAX_NAME]) if said else None


def _why(said: str) -> str:
    return text.printable(text.one_line(said[: 4 * _MAX_WHY], _MAX_WHY))


def _moment(moment: Timestamp) -> str | None:
    """Return a time; None for one that no calendar has, as broken clocks say it."""
    try:
        return _time(moment.ToNanoseconds())
    except ValueError:
        return None


def _time(unix_nano: int) -> str | None:
    """Return the same of nanoseconds since the epoch."""
    try:
        return _rfc3339(unix_nano / 1e9)
    except OverflowError:
        return None


def _rfc3339(seconds: float) -> str:
    found = datetime(1970, 1, 1) + timedelta(seconds=seconds)  # noqa: DTZ001  (UTC, as the ending says)
    return f"{found.isoformat(timespec='milliseconds')}Z"
