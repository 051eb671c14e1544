"""An agent's parts as a bundle keeps them, with the clock at the bundle's time. They serve reading calls only.

The content is checked first: anybody may have made it, and a few kilobytes expand to gigabytes.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp
from penstock.agent.admin.lookups import (
    AgentContext,
    DifferentWeights,
    Retirement,
    WeightsMemory,
    compared_counts,
)
from penstock.agent.bundle import JOURNAL, POLICIES, STATE, check_values
from penstock.agent.errors import BundleError
from penstock.agent.journal import Journal, connect_reader, create_schema
from penstock.agent.metrics import Aggregator, AggregatorCheckpoint, refill_signals
from penstock.agent.model import EngineKey, Source
from penstock.agent.parsing import format_size
from penstock.agent.policy.distribution import PolicyFeed
from penstock.agent.policy.orders import OrderStore, Pauses
from penstock.agent.policy.rollouts import RolloutLeader
from penstock.agent.policy.store import PolicyDatabase, PolicyStore, create_tables
from penstock.agent.sources import Account, LiveSource, Registry
from penstock.agent.stalls import Stall, StallKind
from penstock.agent.state import DamagedError, check_foreign
from penstock.proto.v1.bundle_pb2 import BundledState
from penstock.proto.v1.policy_pb2 import PolicyAck, PolicyNack, Report

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from contextlib import AsyncExitStack
    from pathlib import Path

    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message
    from penstock.agent.admin.lookups import Place
    from penstock.agent.policy.store import Clock
    from penstock.proto.v1.admin_pb2 import AgentStatus
    from penstock.proto.v1.bundle_pb2 import BundledAnswer, BundledSource, BundledSubscription, BundledWeights

# 50,000 series have the half of it.
_MAX_COUNTERS: Final = 4_000_000
# An agent keeps 10,000 sources that have ended.
_MAX_ENTRIES: Final = 50_000
# Of the tables that are read as a whole; of the others a row.
_MAX_TABLE: Final = 64 << 20
_MAX_ROWS: Final = 200_000
_MAX_ROW: Final = 16 << 20
_PIECE: Final = 1 << 20
# Until 2554: what nanoseconds of 64 bits count. An engine's clock may be that wrong, and its agent keeps what it says.
_MAX_SECONDS: Final = (1 << 64) / 1e9

_WHOLE: Final = {
    JOURNAL: {
        "meta": "value",
        "sources": "hello",
        "open_deferrals": "start",
        "folds": "body",
        "cursors": "name",
    },
    POLICIES: {"policy": "manifest", "pause": "engine", "timed_order": "document"},
}
_BY_ROW: Final = {
    JOURNAL: {"batches": "body", "recent": "keys", "runs": "passing", "buckets": "body"},
    POLICIES: {"audit": "new_manifest"},
}


def check_state(state: BundledState) -> None:
    """Check the entries, times and numbers of the agent's memory.

    Raises:
        BundleError: there are more than an agent keeps, or one lies outside of what a clock shows.

    """
    for field, value in state.ListFields():
        if field.is_repeated and len(value) > _MAX_ENTRIES:
            raise BundleError(
                f"its {STATE} has {len(value):,} {field.name}; an agent keeps at most {_MAX_ENTRIES:,}"
            )
    _check_message(state)


def _check_message(message: Message) -> None:
    if isinstance(message, Timestamp):
        if not 0 <= message.seconds <= _MAX_SECONDS:
            raise BundleError(f"its {STATE} has a time before 1970 or after 2554; it is damaged")
        return
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            if field.message_type is not None:
                _check_message(each)
            elif _does_not_fit(field, each):
                raise BundleError(
                    f"its {STATE} has {field.name} {each!r:.40}, which no clock shows; it is damaged"
                )


def _does_not_fit(field: FieldDescriptor, value: Any) -> bool:
    return isinstance(value, float) and (
        not math.isfinite(value) or (field.name.endswith("seconds") and abs(value) > _MAX_SECONDS)
    )


def check_tables(path: Path) -> None:
    """Check the sizes of what is read at once from a database whose tables are an agent's.

    Raises:
        BundleError: more than an agent keeps.

    """
    with closing(connect_reader(path)) as database:
        for table, column in _WHOLE[path.name].items():
            rows, size, _ = _sizes(database, table, column)
            if rows > _MAX_ROWS or size > _MAX_TABLE:
                raise BundleError(
                    f"its {path.name} has {rows:,} rows and {format_size(size)} of {table}; an agent keeps less"
                )
        for table, column in _BY_ROW[path.name].items():
            _, _, largest = _sizes(database, table, column)
            if largest > _MAX_ROW:
                raise BundleError(
                    f"its {path.name} has a row of {format_size(largest)} in {table}; an agent keeps less"
                )
        if path.name == JOURNAL:
            for (body,) in database.execute("SELECT body FROM folds"):
                check_values(f"{JOURNAL} (saved metrics)", _unpacked(body), _MAX_COUNTERS)


def _sizes(database: sqlite3.Connection, table: str, column: str) -> tuple[int, int, int]:
    """Return the number of rows, the bytes of *column*, and those of the largest row."""
    row = database.execute(
        f"SELECT count(*), total(length({column})), coalesce(max(length({column})), 0) FROM {table}"  # noqa: S608  (constants)
    ).fetchone()
    return int(row[0]), int(row[1]), int(row[2])


def _unpacked(body: object) -> Iterator[bytes]:
    """Yield what was compressed, a piece at a time, as far as it can be read: what is damaged is not used later either."""
    stream, left = zlib.decompressobj(), body if isinstance(body, bytes) else b""
    try:
        while left and not stream.eof:
            yield stream.decompress(left, _PIECE)
            left = stream.unconsumed_tail
    except zlib.error:
        return


# The journal of a bundle is far below it, so nothing of it is trimmed.
_LIMIT = 16 << 30
# Of the first push of a stream.
_NONCE = 1


def read_state(directory: Path) -> BundledState:
    """Return the agent's memory as the bundle unpacked in *directory* has it.

    Raises:
        BundleError: it cannot be read.

    """
    text = (directory / STATE).read_bytes()
    check_values(STATE, (text,))
    try:
        # A newer agent of this format may have more fields.
        state = json_format.Parse(text, BundledState(), ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"its {STATE} cannot be read; it is damaged") from error
    if not state.time.ToNanoseconds():
        raise BundleError(f"its {STATE} has no time; it is damaged")
    check_state(state)
    return state


async def restore_context(directory: Path, state: BundledState, parts: AsyncExitStack) -> AgentContext:
    """Return the parts of the agent; they close with *parts*. *directory* is changed.

    Raises:
        BundleError: a database is none of an agent.
        PenstockError: it cannot be read.

    """
    now = state.time.ToNanoseconds() / 1e9
    _check_databases(directory)
    journal = Journal.open(directory, limit=_LIMIT, salvages=False)
    parts.push_async_callback(journal.close)
    aggregator = Aggregator()
    await AggregatorCheckpoint(journal, aggregator).restore()
    await refill_signals(journal, aggregator, state.time.ToNanoseconds())
    database = PolicyDatabase.open(directory)
    parts.callback(database.close)
    # No time goes by in a bundle.
    clocks: dict[str, Clock] = {"clock": lambda: now, "steady": lambda: now}
    store, pauses = PolicyStore(database, **clocks), Pauses(database, **clocks)
    orders = OrderStore(database, **clocks)
    registry = _registry(state)
    feed = PolicyFeed(store, pauses, orders, clock=lambda: now)
    for saved in state.subscriptions:
        _subscribe(feed, saved)
    retirement = Retirement(
        journal, registry, aggregator, feed, database, after=state.retire_after_seconds, clock=lambda: now
    )
    _restore_retirements(retirement, state)
    leader = RolloutLeader(
        store,
        lambda: [subscriber.target for subscriber in feed.subscribers()],
        lambda: compared_counts(aggregator),
        refusing=feed.refusing,
        clock=lambda: now,
    )

    def describe(status: AgentStatus) -> None:
        status.CopyFrom(state.status)

    stalls, ended_stalls = (_stalls(state, ended=ended) for ended in (False, True))
    looks = {EngineKey(each.key.server, each.key.engine): each.seconds for each in state.looks}
    awaited = {each.source.epoch for each in state.sources if each.awaited}
    return AgentContext(
        journal=journal,
        registry=registry,
        aggregator=aggregator,
        store=store,
        pauses=pauses,
        orders=orders,
        feed=feed,
        retirement=retirement,
        rollouts=leader,
        state_dir=directory,
        is_awaited=awaited.__contains__,
        stalls=lambda: stalls,
        ended_stalls=lambda: ended_stalls,
        look_seconds=lambda: looks,
        was_unwritable=state.journal_error,
        weights=WeightsMemory(map(_weights, state.ended_weights)),
        clock=lambda: now,
        statuses=(describe,),
    )


def _restore_retirements(retirement: Retirement, state: BundledState) -> None:
    for source in state.sources:
        if source.HasField("retires_after_seconds"):
            key = source.source.hello.key
            retirement.restore(EngineKey(key.server, key.engine), source.retires_after_seconds)


def _check_databases(directory: Path) -> None:
    for name, create in ((JOURNAL, create_schema), (POLICIES, create_tables)):
        try:
            check_foreign(directory / name, create)
        except DamagedError as error:
            raise BundleError(f"its {name} cannot be used: {error}") from error
        check_tables(directory / name)


def _stalls(state: BundledState, *, ended: bool) -> dict[EngineKey, list[Stall]]:
    """Return the stalls by engine, those that last or those that are over; kinds of a newer agent are left out."""
    found: dict[EngineKey, list[Stall]] = defaultdict(list)
    for saved in state.stalls:
        each = saved.stall
        if each.HasField("until") != ended:
            continue
        since, until = (time.ToNanoseconds() / 1e9 for time in (each.since, each.until))
        with suppress(ValueError):
            stall = Stall(StallKind(each.kind), each.count, since, each.sentence, each.peer, until=until)
            found[EngineKey(saved.key.server, saved.key.engine)].append(stall)
    return dict(found)


def _weights(saved: BundledWeights) -> tuple[Place, DifferentWeights]:
    key, peer = (EngineKey(each.server, each.engine) for each in (saved.key, saved.peer_key))
    span = DifferentWeights(saved.since_unix_nano, peer, saved.evidence, (), saved.until_unix_nano)
    return (key, saved.peer), span


def _registry(state: BundledState) -> Registry:
    registry = Registry(state.time.ToNanoseconds)
    for saved in state.sources:
        registry.add(_live(saved))
    return registry


def _live(saved: BundledSource) -> LiveSource:
    message = saved.source
    live = LiveSource(
        Source.from_hello(message.epoch, message.hello),
        message.connected,
        message.last_seen.ToNanoseconds(),
        message.watermark,
        saved.snapshot if saved.HasField("snapshot") else None,
        account=Account(message.stored_entries, message.lost_entries) if saved.accounted else None,
        unaccounted=message.unaccounted_entries if message.HasField("unaccounted_entries") else None,
        said_goodbye=saved.said_goodbye,
        kill_switch_unread=saved.kill_switch_unread,
    )
    if message.HasField("clock_offset_nano"):
        live.clock_readings.append(message.clock_offset_nano)
    live.drops.update({(each.reason, each.kind): each.count for each in message.drops})
    live.guard_errors.update({(each.hook, each.error_class): each.count for each in message.guard_errors})
    return live


def _subscribe(feed: PolicyFeed, saved: BundledSubscription) -> None:
    """Give the feed an engine with its last answer, as if it had just answered."""
    subscriber = feed.add_stream(saved.subscribe)
    feed.next_push(subscriber)
    if saved.HasField("answer"):
        feed.on_report(subscriber, _report(saved.answer))
        if subscriber.answer is not None:
            subscriber.answer = replace(
                subscriber.answer,
                # An answer to an earlier push is not one to the present.
                nonce=subscriber.answer.nonce if saved.answer.settled else 0,
                error=saved.answer.error,
                time=saved.answer.time.ToNanoseconds() / 1e9,
                took=saved.answer.took_seconds,
            )
    subscriber.hash_taken = saved.hash_taken
    if not saved.connected:
        feed.end_stream(subscriber)


def _report(answer: BundledAnswer) -> Report:
    if answer.error:
        return Report(
            nack=PolicyNack(
                nonce=_NONCE,
                hash_in_force=answer.hash,
                error=answer.error,
                field=answer.field,
                refused_orders=answer.refused_orders,
            )
        )
    return Report(
        ack=PolicyAck(
            nonce=_NONCE, hash=answer.hash, paused=answer.paused, refused_orders=answer.refused_orders
        )
    )
