"""Tables that the panels of a peer, an engine and a condition share: who has it, what failed by kind, what the policy says.

What an agent does not tell is ``not known``, which is neither none nor 0.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.agent.page.details.detail import Link, TableSection, table_section
from penstock.agent.page.wire import AdminCalls, AnswerError, about, plain
from penstock.agent.views import text
from penstock.agent.views.peers import peer_name, quantiles
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

NOT_KNOWN: Final = "not known"
NO_POLICY: Final = "no policy selects it; vLLM's own configuration is in force"

_MAX_ROWS: Final = 30
_QUARTER: Final = 900
_HOUR: Final = 3_600
_CALM: Final = frozenset({admin.PEER_CONDITION_OK, admin.PEER_CONDITION_IDLE})
_DIRECTIONS: Final = {common.DIRECTION_RECEIVE: "in", common.DIRECTION_SEND: "out"}
# Sections of a policy about loads and peers.
_OF_LOADS: Final = ("kvLoadFailure", "ecLoadFailure", "deferral", "peerQuarantine", "reflexes", "ejection")
_OBSERVED: Final = "observed."


def failures_request(selector: admin.EngineSelector, peer: str = "") -> admin.ListEventsRequest:
    """Return the question for the failures of the last hour, which :func:`failed_section` counts."""
    request = admin.ListEventsRequest(selector=selector, peer=peer, kinds=["transfer_failure"], limit=500)
    request.since.FromSeconds(_HOUR)
    return request


def since_of(moment: Timestamp, now: float) -> str:
    """Return a time that is known: ``since 21:43:10 UTC, 12m ago``."""
    return f"since {datetime.fromtimestamp(moment.seconds, UTC):%H:%M:%S} UTC, {text.ago_of(moment, now)}"


def word_of(item: admin.PeerSummary) -> str:
    """Return the condition of a peer; not known from an agent that does not tell."""
    known = item.condition != admin.PEER_CONDITION_UNSPECIFIED
    return text.word(admin.PeerCondition, item.condition).replace("_", " ") if known else NOT_KNOWN


def is_wrong(item: admin.PeerSummary) -> bool:
    """Return whether a peer is known to be in trouble."""
    return item.condition not in {admin.PEER_CONDITION_UNSPECIFIED, *_CALM}


def condition_sentence(item: admin.PeerSummary, now: float) -> str:
    """Return what is wrong with a peer for one engine, and since when."""
    name = f"engine {text.engine(item.key)}"
    if item.condition == admin.PEER_CONDITION_OK:
        return f"Nothing is wrong with it for {name}"
    if item.condition == admin.PEER_CONDITION_IDLE:
        return f"{name[0].upper()}{name[1:]} has tried nothing with it for 15 minutes: whether something is wrong is not known"
    if not is_wrong(item):
        return f"What is wrong with it for {name} is not known: the agent does not tell"
    known = item.HasField("condition_since")
    since = since_of(item.condition_since, now) if known else "since when is not known"
    why = f": {text.folded(item.condition_reason)}" if item.condition_reason else ""
    return f"It is {word_of(item)} for {name} {since if known else f'({since})'}{why}"


def readers_section(title: str, items: Sequence[admin.PeerSummary], now: float) -> TableSection:
    """Return the engines that have one peer, the worst first, as the answer has them."""
    shown = items[:_MAX_ROWS]
    rows: list[tuple[str, ...]] = [
        (
            text.engine(item.key),
            word_of(item),
            _since(item, now),
            traffic_words(item),
            str(item.failures_last_15_minutes) if item.HasField("failures_last_15_minutes") else NOT_KNOWN,
            quantiles(item.waits.last_minute).partition("/")[2] or text.NONE,
        )
        for item in shown
    ]
    return table_section(
        title,
        Table(("ENGINE", "NOW", "SINCE", "MOVED IN 15 MINUTES", "LOADS FAILED", "WAIT P99"), rows),
        sentence=_left_out(len(items), "no engine is known to have it"),
        links=[Link("peer", engine=text.engine(item.key), peer=item.peer.address) for item in shown],
    )


def peers_section(items: Sequence[admin.PeerSummary], now: float) -> TableSection:
    """Return the peers of one engine, the worst first, as the answer has them."""
    shown = items[:_MAX_ROWS]
    rows: list[tuple[str, ...]] = [
        (
            item.peer.address,
            peer_name(item) or text.NONE,
            word_of(item),
            _since(item, now),
            traffic_words(item),
            text.one_line(item.condition_reason) or text.NONE,
        )
        for item in shown
    ]
    return table_section(
        "Its peers",
        Table(("PEER", "ENGINE", "NOW", "SINCE", "MOVED IN 15 MINUTES", "WHY"), rows),
        sentence=_left_out(len(items), "no peer is known"),
        links=[Link("peer", engine=text.engine(item.key), peer=item.peer.address) for item in shown],
        commands=[about("describe", "peer", name=item.peer.address) for item in shown],
    )


def _since(item: admin.PeerSummary, now: float) -> str:
    if item.HasField("condition_since"):
        return text.ago_of(item.condition_since, now)
    return NOT_KNOWN if is_wrong(item) or not item.condition else text.NONE


def _left_out(total: int, nothing: str) -> str:
    left = total - _MAX_ROWS
    return nothing if not total else f"{left} more are left out; the command lists all" if left > 0 else ""


def traffic_words(item: admin.PeerSummary) -> str:
    """Return what was moved by channel and direction: ``kv in 20 ok, 3 failed``; not known from older agents."""
    if not item.traffic:
        return NOT_KNOWN if item.transfers_ok or not item.condition else "nothing"
    return ", ".join(map(_way, item.traffic))


def _way(item: admin.PeerTraffic) -> str:
    way = f"{text.word(common.Channel, item.channel)} {_DIRECTIONS.get(item.direction, NOT_KNOWN)}"
    if not item.HasField("last_15_minutes"):
        return f"{way} {NOT_KNOWN}"
    failed = item.last_15_minutes.transfers_failed
    return f"{way} {item.last_15_minutes.transfers_ok} ok{f', {failed} failed' if failed else ''}"


def failed_section(
    items: Iterable[admin.PeerSummary], events: admin.ListEventsResponse, now: float
) -> TableSection:
    """Return failures by kind: counted by engines since they began, and by the entries of the last hour.

    Where the answer was cut, counts of a time before its oldest entry are the least that they are.
    """
    counters = Counter[tuple[int, int]]()
    for item in items:
        for entry in item.failures:
            counters[entry.mode, entry.error_type] += entry.count
    quarter, hour = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    last: dict[tuple[int, int], int] = {}
    for found in events.events:
        failure, time = found.event.transfer_failure, found.event.time_unix_nano
        kind = (failure.mode, failure.error_type)
        hour[kind] += 1
        quarter[kind] += time >= (now - _QUARTER) * 1e9
        last[kind] = max(time, last.get(kind, 0))
    oldest = min((each.event.time_unix_nano for each in events.events), default=0)
    cut_quarter = events.truncated and oldest > (now - _QUARTER) * 1e9
    kinds = sorted({*counters, *hour}, key=lambda kind: (-hour[kind], -counters[kind], kind))
    rows: list[tuple[str, ...]] = [
        (
            text.word(common.FailureMode, kind[0]),
            text.word(common.ErrorType, kind[1]),
            _count(quarter[kind], least=cut_quarter),
            _count(hour[kind], least=events.truncated),
            # Counters may be younger than the entries: an engine that starts anew counts from 0.
            str(counters[kind]) if kind in counters else NOT_KNOWN,
            text.ago(last[kind], now) if kind in last else "over 1h ago" if not events.truncated else NOT_KNOWN,
        )
        for kind in kinds
    ]  # fmt: skip
    return table_section(
        "Failed, by kind",
        Table(("MODE", "ERROR", "LAST 15 MINUTES", "LAST HOUR", "IN ALL", "LAST"), rows[:_MAX_ROWS]),
        sentence=_left_out(len(rows), "no failure is known"),
    )


def _count(number: int, *, least: bool) -> str:
    return f"≥{number}" if least else str(number)


def policy_section(
    title: str, effective: admin.EffectivePolicy, *, sections: Collection[str] = ()
) -> TableSection:
    """Return the fields of a merged policy with the policy that gives each; *sections* of it, or all."""
    names = {each.name: text.policies([each], "") for each in effective.policies}
    fields = [
        field
        for field in effective.fields
        if not sections or field.field.removeprefix(_OBSERVED).partition(".")[0] in sections
    ]
    rows: list[tuple[str, ...]] = [
        (field.field, field.new_value, names.get(field.new_policy, field.new_policy)) for field in fields
    ]
    nothing = "its policies say nothing about it" if effective.fields else NO_POLICY
    return table_section(
        title,
        Table(("FIELD", "VALUE", "POLICY"), rows),
        sentence="" if rows else nothing,
        links=[Link("policy", name=field.new_policy) for field in fields],
    )


async def loads_policy_section(calls: AdminCalls, key: common.EngineKey) -> TableSection:
    """Return what the policy of an engine does about failed loads, waits and peers; of one that has gone it is not known."""
    title = plain(f"What the policy of {text.engine(key)} does about it")
    try:
        effective = await calls.call("GetEffectivePolicy", admin.GetEffectivePolicyRequest(key=key))
    except AnswerError as error:
        return TableSection(title, (), (), plain(f"{NOT_KNOWN}: {error.sentence}"))
    return policy_section(title, effective, sections=_OF_LOADS)
