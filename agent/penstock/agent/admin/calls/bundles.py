"""``GetBundle``: the evidence of one agent, streamed; and what a bundle keeps of its memory."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf import json_format
from penstock.agent.admin.calls.engines import source_message
from penstock.agent.admin.calls.rollouts import list_policy_rollouts
from penstock.agent.admin.calls.status import get_status
from penstock.agent.admin.lookups import key_message, stall_message, timestamp_message
from penstock.agent.aio import to_completion
from penstock.agent.errors import ContractError, ImpossibleError, StateError
from penstock.agent.journal import WindowReader, connect_reader, journal_errors
from penstock.agent.parsing import mask_message, mask_urls
from penstock.agent.policy.store import FILE_NAME as POLICIES
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.bundle_pb2 import (
    BundledAnswer,
    BundledLook,
    BundledSource,
    BundledStall,
    BundledState,
    BundledSubscription,
    BundledWeights,
)
from penstock.proto.v1.policy_pb2 import OrderRefusal, Subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path

    from penstock.agent.admin.lookups import AgentContext
    from penstock.agent.policy.distribution import Subscriber
    from penstock.agent.sources import LiveSource
    from penstock.proto.v1.admin_pb2 import Source

DEFAULT_BYTES = 64 << 20
_DEFAULT_SECONDS = 3600
_PIECE = 1 << 20
# Of batches in one message; the next is read when the reader has taken it.
_BATCH_BYTES = 4 << 20

T = TypeVar("T")


async def get_bundle(agent: AgentContext, request: admin.GetBundleRequest) -> AsyncIterator[admin.BundlePart]:
    """Yield the parts. Reads a few megabytes of the log at a time, and nothing while the caller does not read."""
    if request.agent:
        raise ContractError("this is an agent and not a relay; omit --agent")
    agent.journal.whereabouts.require_in_place()
    left = request.max_bytes or DEFAULT_BYTES
    for name, content in await _files(agent):
        left -= len(content)
        for start in range(0, max(len(content), 1), _PIECE):
            piece = content[start : start + _PIECE]
            yield admin.BundlePart(file=admin.BundleFile(name=name, content=piece))
    seconds = request.since.ToNanoseconds() / 1e9 if request.HasField("since") else _DEFAULT_SECONDS
    since = max(0, int((agent.clock() - seconds) * 1e9))
    with journal_errors(agent.journal.path), closing(WindowReader(agent.journal.path)) as reader:
        async for part in _journal(agent, reader, since, left):
            yield part


async def _journal(
    agent: AgentContext, reader: WindowReader, since: int, left: int
) -> AsyncIterator[admin.BundlePart]:
    window = await _in_turn(agent, reader.read)
    size = await _in_turn(agent, reader.size, since, window.counted_batch)
    left -= window.ByteSize()
    window.bytes = min(size.bytes, max(0, left))
    yield admin.BundlePart(journal=window)
    below, sent, sent_bytes = window.last_batch + 1, 0, 0
    while True:
        batches = await _in_turn(agent, reader.batches, below, size.first, min(left, _BATCH_BYTES))
        if not batches:
            break
        below = batches[-1].id
        taken = sum(len(batch.body) for batch in batches)
        sent, sent_bytes, left = sent + len(batches), sent_bytes + taken, left - taken
        yield admin.BundlePart(batches=admin.StoredBatches(batches=batches))
    yield admin.BundlePart(
        end=admin.BundleEnd(
            left_out_batches=max(0, size.batches - sent), left_out_bytes=max(0, size.bytes - sent_bytes)
        )
    )


async def _in_turn(agent: AgentContext, read: Callable[..., T], *arguments: Any) -> T:
    """Read on a thread, in turn with the other queries of the log."""
    if agent.stopping.is_set():
        raise ImpossibleError("the agent is stopping; ask again")
    async with agent.turns:
        return await to_completion(asyncio.to_thread(read, *arguments))


async def _files(agent: AgentContext) -> list[tuple[str, bytes]]:
    """Return the files by name. Those that the agent writes for it are without secrets; the policies are as stored."""
    state = BundledState(
        status=await get_status(agent, admin.GetStatusRequest()),
        rollouts=(await list_policy_rollouts(agent, admin.ListPolicyRolloutsRequest())).rollouts,
        retire_after_seconds=agent.retirement.after,
        journal_error=agent.blind,
    )
    # Of one moment: nothing is awaited.
    state.time.FromNanoseconds(int(agent.clock() * 1e9))
    state.sources.extend(bundled_sources(agent, source_message))
    state.subscriptions.extend(bundled_subscriptions(agent))
    state.stalls.extend(bundled_stalls(agent))
    state.looks.extend(bundled_looks(agent))
    state.ended_weights.extend(bundled_weights(agent))
    pages = await asyncio.to_thread(_pages, agent.pages)
    return [
        ("state.json", await asyncio.to_thread(_masked_json, state)),
        *pages,
        ("policy.db", await asyncio.to_thread(_policies, agent.state_dir / POLICIES)),
    ]


def _pages(pages: Mapping[str, Callable[[], bytes]]) -> list[tuple[str, bytes]]:
    """Return the pages without secrets; one that cannot be written yet is left out."""
    found = []
    for name, write in pages.items():
        with suppress(StateError):
            found.append((name, mask_urls(write().decode()).encode()))
    return found


def _masked_json(state: BundledState) -> bytes:
    mask_message(state)
    return json_format.MessageToJson(state, indent=1, ensure_ascii=False).encode()


def _policies(path: Path) -> bytes:
    with journal_errors(path), closing(connect_reader(path)) as database:
        return database.serialize()


def bundled_sources(agent: AgentContext, message: Callable[[LiveSource], Source]) -> Iterator[BundledSource]:
    """Yield all sources; *message* describes one as ``ListEngines`` does."""
    for live in agent.registry.sources():
        kept = BundledSource(
            source=message(live),
            snapshot=live.snapshot,
            said_goodbye=live.said_goodbye,
            kill_switch_unread=live.kill_switch_unread,
            accounted=live.account is not None,
            awaited=agent.is_awaited(live.source.epoch),
        )
        if not live.connected:
            kept.retires_after_seconds = agent.retirement.seconds_left(live.source.key)
        yield kept


def bundled_subscriptions(agent: AgentContext) -> Iterator[BundledSubscription]:
    """Yield the subscription of each engine."""
    for subscriber in agent.feed.subscribers():
        target = subscriber.target
        yield BundledSubscription(
            subscribe=Subscribe(
                schema_version=1,
                epoch=subscriber.epoch,
                key=key_message(target.key),
                model=target.model,
                labels=target.labels,
                hash_in_force=subscriber.hash_taken,
                supported_fields=sorted(subscriber.supported),
                faults_allowed=subscriber.faults_allowed,
                paused=subscriber.paused_before,
                takes_policy_names=subscriber.takes_policy_names,
            ),
            connected=subscriber.connected,
            hash_taken=subscriber.hash_taken,
            answer=_answer(subscriber),
        )


def bundled_stalls(agent: AgentContext) -> Iterator[BundledStall]:
    """Yield the stalls of all engines, also those that are over."""
    for key, stalls in (*agent.stalls().items(), *agent.ended_stalls().items()):
        for stall in stalls:
            yield BundledStall(key=key_message(key), stall=stall_message(stall))


def bundled_looks(agent: AgentContext) -> Iterator[BundledLook]:
    """Yield how often the workers of each engine look at their transfers, where that is known."""
    for key, seconds in agent.look_seconds().items():
        yield BundledLook(key=key_message(key), seconds=seconds)


def bundled_weights(agent: AgentContext) -> Iterator[BundledWeights]:
    """Yield which engines had read from peers with other weights, as far as that is over."""
    for (key, address), each in agent.weights.ended:
        yield BundledWeights(
            key=key_message(key),
            peer=address,
            peer_key=key_message(each.peer_key),
            evidence=each.evidence,
            since_unix_nano=each.since,
            until_unix_nano=each.until,
        )


def _answer(subscriber: Subscriber) -> BundledAnswer | None:
    answer = subscriber.answer
    if answer is None:
        return None
    return BundledAnswer(
        settled=subscriber.settled,
        hash=answer.hash,
        paused=answer.paused,
        error=answer.error,
        field=answer.field,
        refused_orders=[OrderRefusal(id=name, error=text) for name, text in answer.refused_orders.items()],
        time=timestamp_message(int(answer.time * 1e9)),
        took_seconds=answer.took,
    )
