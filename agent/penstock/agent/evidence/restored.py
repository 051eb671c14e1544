"""An agent's parts as a bundle keeps them, with the clock at the bundle's time. They serve reading calls only."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from google.protobuf import json_format
from penstock.agent.admin.lookups import (
    AgentContext,
    DifferentWeights,
    Retirement,
    WeightsMemory,
    compared_counts,
)
from penstock.agent.bundle import JOURNAL, POLICIES, STATE, check_values
from penstock.agent.errors import BundleError
from penstock.agent.evidence.content_bounds import check_state, check_tables
from penstock.agent.journal import Journal, create_schema
from penstock.agent.metrics import Aggregator, AggregatorCheckpoint
from penstock.agent.model import EngineKey, Source
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
    from contextlib import AsyncExitStack
    from pathlib import Path

    from penstock.agent.admin.lookups import Place
    from penstock.agent.policy.store import Clock
    from penstock.proto.v1.admin_pb2 import AgentStatus
    from penstock.proto.v1.bundle_pb2 import BundledAnswer, BundledSource, BundledSubscription, BundledWeights

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
    for source in state.sources:
        if source.HasField("retires_after_seconds"):
            key = source.source.hello.key
            retirement.restore(EngineKey(key.server, key.engine), source.retires_after_seconds)
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
