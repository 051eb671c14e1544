"""``GetBundle``: the evidence of one agent, streamed."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf import json_format
from penstock.agent.admin.calls.engines import source_message
from penstock.agent.admin.calls.rollouts import list_policy_rollouts
from penstock.agent.admin.calls.status import get_status
from penstock.agent.admin.lookups import (
    bundled_looks,
    bundled_sources,
    bundled_stalls,
    bundled_subscriptions,
    bundled_weights,
)
from penstock.agent.aio import to_completion
from penstock.agent.errors import ContractError, ImpossibleError, StateError
from penstock.agent.journal import WindowReader, connect_reader, journal_errors
from penstock.agent.parsing import mask_message, mask_urls
from penstock.agent.policy.store import FILE_NAME as POLICIES
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.bundle_pb2 import BundledState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from penstock.agent.admin.lookups import AgentContext

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
