"""The calls about engines: list, signals, stacks, forget; and what the judge is told of their peers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.agent.admin.calls.orders import ordered_states
from penstock.agent.admin.lookups import (
    ENGINE_METRICS,
    MergedPolicies,
    PeerSources,
    author_and_reason,
    check_engine_names,
    clock_offsets,
    compared_counts,
    compared_engine,
    engine_counters,
    engine_key_of,
    feed_states,
    last_loads,
    last_snapshots,
    listed_peers,
    messages,
    policy_states,
    queue_of,
    selected_targets,
    selected_views,
    selection_of,
    signals_of,
    targets_by_key,
    without_requests,
)
from penstock.agent.errors import ContractError, ImpossibleError, NotFoundError
from penstock.agent.model import engines_by_server
from penstock.agent.policy.rollouts import EngineCounts
from penstock.proto.names import FRONT_END
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.ingest_pb2 import Drop, GuardError, Hello

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.agent.admin.lookups import AgentContext, FeedState
    from penstock.agent.model import Source
    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import Merged
    from penstock.agent.policy.orders import Ejection
    from penstock.agent.sources import EngineView, LiveSource
    from penstock.proto.v1.snapshot_pb2 import Leases


_ENGINE_STATES = {"": {True, False}, "connected": {True}, "disconnected": {False}}
# Engines of an answer that are made before the loop rests: half a millisecond. A loop that only takes another turn gives the
# interpreter to no thread that waits for it: a commit would not end before the list does.
_AT_ONCE = 8
_REST_SECONDS = 0.001


STACKS_SECONDS: Final = 4.0
"""Less than a relay waits for an agent in this call (8 s). An engine answers at once, or within a second if its step hangs."""


async def list_engines(agent: AgentContext, request: admin.ListEnginesRequest) -> admin.ListEnginesResponse:
    """Return the selected engines with the current state of their sources.

    The loop rests after any eight of them; which engines there are and what the policy feed has of them is of the
    moment of the call.
    """
    response = admin.ListEnginesResponse()
    for number, engine in enumerate(_engines(agent, request), 1):
        response.engines.append(engine)
        if number % _AT_ONCE == 0:
            await asyncio.sleep(_REST_SECONDS)
    return response


async def list_ejections(
    agent: AgentContext, request: admin.ListEjectionsRequest
) -> admin.ListEjectionsResponse:
    """Return the servers of the selected engines that are out of rotation; an agent takes none out by policy."""
    asked = admin.ListEnginesRequest(selector=request.selector, without_counters=True)
    answer = messages.server_ejections((await list_engines(agent, asked)).engines)
    answer.undecided = (
        "an agent ejects by order only: what policies say of ejection is for the relay that leads"
    )
    return answer


async def get_signals(agent: AgentContext, request: admin.GetSignalsRequest) -> admin.Signals:
    """Return what the selected engines did in the last 15 minutes, together; NotFoundError for a name that is none."""
    selection = selection_of(request.selector)
    check_engine_names(agent, selection)
    views = selected_views(agent, selection)
    now = int(agent.clock() * 1e9)
    since = now - request.since.ToNanoseconds() if request.HasField("since") else 0
    return await asyncio.to_thread(signals_of, agent.aggregator, views, since, now)


def _engines(agent: AgentContext, request: admin.ListEnginesRequest) -> Iterator[admin.Engine]:
    wanted = _ENGINE_STATES.get(request.state)
    if wanted is None:
        raise ContractError(f"state is {request.state!r}; give connected, disconnected, or omit it for both")
    selection, known = selection_of(request.selector), agent.registry.engines()
    all_targets, holding = targets_by_key(agent, known), policy_states(agent, known).in_force
    merges = MergedPolicies((policy.manifest for policy in agent.store.policies()), agent.now)
    counted = not request.without_counters
    rows = {row.key: row for row in agent.aggregator.engines(ENGINE_METRICS)} if counted else {}
    counts, refusing = compared_counts(agent.aggregator) if counted else {}, agent.feed.refusing()
    servers = engines_by_server(view.key for view in known if view.connected)
    states, moment = feed_states(agent, (view.key for view in known)), int(agent.clock() * 1e9)
    # All that changes with the feed is read above: the loop goes on between two engines.
    for view in known:
        target = all_targets[view.key]
        if view.connected not in wanted or not selection.matches(target):
            continue
        merged = merges.merged(merges.selected(target))
        state = states[view.key]
        engine = _engine(agent, view, target, merged, state, moment)
        engine.in_sync = view.key in holding
        if view.facts is not None:
            reported = view.facts.data_parallel_size
            engine.facts.data_parallel_size = max(reported, servers.get(view.key.server, 0))
        if view.key in rows:
            engine.counters.CopyFrom(engine_counters(rows[view.key]))
            engine.last_loads.extend(last_loads(rows[view.key]))
        if counted:
            compared = counts.get(view.key, EngineCounts())
            engine.compared.CopyFrom(compared_engine(target, compared, refuses=view.key in refusing))
        yield engine


async def suspected_peers(agent: AgentContext, selector: admin.EngineSelector) -> admin.ListPeersResponse:
    """Return the active peers of the selected engines that anything is known of beyond that they are there.

    As they are seen: what the judge said before is not asked.
    """
    return await asyncio.to_thread(
        listed_peers,
        peer_sources(agent, selector),
        admin.ListPeersRequest(),
        retired_before(agent),
        only_suspected=True,
    )


def retired_before(agent: AgentContext) -> int:
    """Return after which time, nanoseconds, a peer has an entry that is not retired."""
    return int((agent.clock() - agent.retirement.after) * 1e9)


def peer_sources(agent: AgentContext, selector: admin.EngineSelector) -> PeerSources:
    """Return what the agent sees of the peers of the selected engines."""
    selection = selection_of(selector)
    targets = {} if selection.everything else targets_by_key(agent)
    views = selected_views(agent, selection)
    return PeerSources(
        aggregator=agent.aggregator,
        snapshots=last_snapshots(views),
        ordered=ordered_states(agent, selection),
        ahead=clock_offsets(views),
        now=int(agent.clock() * 1e9),
        selects=lambda key: selection.everything or (key in targets and selection.matches(targets[key])),
    )


def _engine(
    agent: AgentContext, view: EngineView, target: Target, merged: Merged, state: FeedState, moment: int
) -> admin.Engine:
    """Return an engine with its *state* at *moment*, nanoseconds since the epoch."""
    snapshots = [live.snapshot for live in view.sources if live.snapshot is not None]
    engine = admin.Engine(
        key=messages.key_message(view.key),
        connected=view.connected,
        last_seen=messages.timestamp_message(view.last_seen_unix_nano),
        role=messages.role_of(view.role),
        role_guessed=view.role_guessed,
        labels=dict(target.labels),
        facts=view.facts,
        policy=view.policy,
        wanted_hash=merged.hash if state.wanted is None else state.wanted,
        # An answer is newer than the last snapshot.
        paused=_paused(state, view),
        sources=map(source_message, view.sources),
        wanted_kv_action=_action(merged, "kvLoadFailure"),
        wanted_ec_action=_action(merged, "ecLoadFailure"),
        said_goodbye=view.said_goodbye,
    )
    queue = queue_of(view)
    if queue is not None:
        engine.queue.CopyFrom(without_requests(queue))
    if state.pause is not None:
        engine.pause.CopyFrom(messages.pause_message(state.pause))
    _add_ejection(engine, view, agent.orders.ejection_of(view.key.server))
    if not view.connected:
        retires = agent.clock() + agent.retirement.seconds_left(view.key)
        engine.retires.FromNanoseconds(int(retires * 1e9))
    if view.policy is not None and state.connected:
        _set_present(engine, "" if engine.paused else state.hash_in_force)
    if state.wanted is not None:
        for names, hash_ in (
            (engine.policies, engine.policy.hash),
            (engine.wanted_policies, engine.wanted_hash),
        ):
            names.extend(
                messages.source_messages(agent.store.sources(hash_, target, moment) if hash_ else ())
            )
    if state.refusal:
        engine.policy.last_error = state.refusal
    for snapshot in snapshots:
        engine.deferred.extend(snapshot.deferred)
        engine.in_flight.extend(snapshot.in_flight)
        if snapshot.HasField("eplb"):
            engine.eplb.CopyFrom(snapshot.eplb)
    engine.stalls.extend(map(messages.stall_message, agent.stalls().get(view.key, ())))
    engine.ended_stalls.extend(map(messages.stall_message, agent.ended_stalls().get(view.key, ())))
    _add_sleep(engine, [snapshot.transfer.released_time_unix_nano for snapshot in snapshots])
    _add_leases(engine, [snapshot.leases for snapshot in snapshots if snapshot.HasField("leases")])
    return engine


def _add_ejection(engine: admin.Engine, view: EngineView, order: Ejection | None) -> None:
    """Set the order that takes its server out of rotation, or until when a front end still is without one."""
    front_ends = [live for live in view.sources if live.connected and live.source.process == FRONT_END]
    ends = [
        0 if live.snapshot is None else live.snapshot.out_of_rotation_until_unix_nano for live in front_ends
    ]
    if order is not None:
        engine.ejection.CopyFrom(messages.ejection_message(order, in_force=bool(ends) and all(ends)))
    elif any(ends):
        engine.ejection.in_force = True
        engine.ejection.until.FromNanoseconds(max(ends))


def _add_sleep(engine: admin.Engine, released: Iterable[int]) -> None:
    """Set since when a worker of a connected engine has taken its KV caches from its connector; 0 of one that has not."""
    since = min(filter(None, released), default=0)
    if since and engine.connected:
        engine.asleep_since.FromNanoseconds(since)


def _set_present(engine: admin.Engine, hash_in_force: str) -> None:
    """Set the policy in force by the engine's answer, which may be newer than its snapshot."""
    status, facts = engine.policy, engine.facts
    if hash_in_force != status.hash and hash_in_force in ("", engine.wanted_hash):
        of_policy = hash_in_force != ""
        own = facts.kv_load_failure_policy
        status.kv_action = (engine.wanted_kv_action if of_policy else "") or own
        status.ec_action = engine.wanted_ec_action if of_policy else ""
    status.hash = hash_in_force


def _action(merged: Merged, section: str) -> str:
    """Return the action for failed loads; empty if the policy sets none."""
    given = merged.body.get(f"{section}.action")
    return "" if given is None else str(given.value)


def _paused(state: FeedState, view: EngineView) -> bool:
    if state.answer is None:
        return view.paused
    # After a refused push, only the engine knows whether it is paused.
    return state.answer.paused or (bool(state.answer.error) and view.paused)


def _add_leases(engine: admin.Engine, leases: list[Leases]) -> None:
    if not leases:
        return
    starts = [item.oldest_start_time_unix_nano for item in leases if item.oldest_start_time_unix_nano]
    engine.leases.count = messages.clamp_unsigned(sum(item.count for item in leases), messages.MAX_UINT32)
    engine.leases.blocks = messages.clamp_unsigned(sum(item.blocks for item in leases))
    engine.leases.oldest_start_time_unix_nano = min(starts, default=0)


def source_message(live: LiveSource) -> admin.Source:
    """Return the message that describes a source."""
    snapshot = live.snapshot
    message = admin.Source(
        hello=_hello(live.source),
        epoch=live.source.epoch,
        watermark=live.watermark,
        connected=live.connected,
        last_seen=messages.timestamp_message(live.last_seen_unix_nano),
        hooks=snapshot.hooks if snapshot is not None else (),
        emitter=snapshot.emitter if snapshot is not None and snapshot.HasField("emitter") else None,
        clock_offset_nano=messages.clamp_signed(live.clock_offset_nano),
        stored_entries=messages.clamp_unsigned(live.account.stored) if live.account is not None else 0,
        lost_entries=messages.clamp_unsigned(live.account.lost) if live.account is not None else 0,
        unaccounted_entries=messages.clamp_signed(live.unaccounted),
        upstream_counts=snapshot.upstream_counts if snapshot is not None else (),
    )
    message.drops.extend(_drops(live.drops.items()))
    message.guard_errors.extend(
        GuardError(hook=hook, error_class=error_class, count=messages.clamp_unsigned(count))
        for (hook, error_class), count in sorted(live.guard_errors.items())
    )
    return message


def _drops(counts: Iterable[tuple[tuple[str, str], int]]) -> list[Drop]:
    return [
        Drop(reason=reason, kind=kind, count=messages.clamp_unsigned(count))
        for (reason, kind), count in sorted(counts)
    ]


def _hello(source: Source) -> Hello:
    return Hello(
        schema_version=source.schema_version,
        key=messages.key_message(source.key),
        process=source.process,
        rank=source.rank,
        pid=source.pid,
        start_time_unix_nano=source.start_time_unix_nano,
        penstock_version=source.penstock_version,
        vllm_version=source.vllm_version,
        model=source.model,
        labels=dict(source.labels),
        role=messages.role_of(source.role),
        role_guessed=source.role_guessed,
    )


async def forget(agent: AgentContext, request: admin.ForgetRequest) -> admin.ForgetResponse:
    """Forget a disconnected engine, or a peer not in use, before --retire-after ends."""
    if request.HasField("engine") == bool(request.peer):
        raise ContractError("give either engine or peer")
    who = author_and_reason(request.author, request.reason)
    if request.HasField("engine"):
        keys = [engine_key_of(request.engine)]
        await agent.retirement.forget_engine(keys[0], **who)
    else:
        selection = selection_of(request.selector)
        chosen = None if selection.everything else selected_targets(agent, selection)
        keys = await agent.retirement.forget_peer(
            request.peer, None if chosen is None else [target.key for target in chosen], **who
        )
    return admin.ForgetResponse(engines=map(messages.key_message, keys))


async def get_stacks(agent: AgentContext, request: admin.GetStacksRequest) -> admin.EngineStacks:
    """Ask the EngineCore of one engine; the question is in the audit log whatever the answer is."""
    key = engine_key_of(request.key)
    if key not in targets_by_key(agent):
        raise NotFoundError(f"there is no engine {str(key)!r}; 'agentctl get engines' lists them")
    await agent.orders.record_question(f"engine {key}", **author_and_reason(request.author, request.reason))
    subscriber = agent.feed.subscriber(key)
    if subscriber is None or not subscriber.connected:
        raise ImpossibleError(
            f"engine {key} is not connected to the policy feed, which carries the request; "
            f"'agentctl describe engine {key}' says since when"
        )
    dump = await agent.feed.ask_stacks(subscriber, STACKS_SECONDS)
    if dump is None:
        raise ImpossibleError(
            f"engine {key} has not answered within {STACKS_SECONDS:g} s: its penstock is too old for this call, or the "
            "whole process stands still (a native call that holds Python's lock)"
        )
    if dump.refusal:
        raise ImpossibleError(f"engine {key}: {dump.refusal}")
    return admin.EngineStacks(key=messages.key_message(key), processes=[dump])
