"""Detectors of loads that do not begin, loads that are not made, and routers that send no transfer parameters."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from penstock.agent.badness import NO_SERVERS
from penstock.agent.stalls.stall import Stall, StallKind
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.stalls.limits import Limits
    from penstock.agent.stalls.process_state import EngineState
    from penstock.proto.v1.snapshot_pb2 import EngineFacts

TAKES_PARAMS: Final = frozenset(
    {"MooncakeConnector", "MoRIIOConnector", "NixlConnector", "NixlPullConnector", "NixlPushConnector"}
)
"""Connectors that load only what ``kv_transfer_params`` name."""
_PUSHES: Final = "NixlPushConnector"


def loads_not_started(engine: EngineState, limits: Limits) -> Iterator[Stall]:
    """Yield the peers from which requests wait for KV, without a transfer or a handshake that was begun for them."""
    core, facts = engine.core, engine.facts
    if core is None or core.progress is None:
        return
    pushed = facts is not None and facts.kv_connector == _PUSHES
    limit = limits.push_start_wait if pushed else limits.start_wait
    # All ranks wait for the handshakes of the same requests.
    handshaking: defaultdict[str, int] = defaultdict(int)
    for _, progress in engine.reporting:
        for row in progress.handshaking:
            handshaking[row.peer.address] = max(handshaking[row.peer.address], row.count)
    for row in core.progress.unstarted:
        count = row.count - handshaking[row.peer.address]
        waited = core.age(row.oldest_start_time_unix_nano)
        if count > 0 and waited >= limit:
            peer = row.peer.address or "unknown"
            yield Stall(
                StallKind.LOAD_NOT_STARTED,
                count,
                engine.now - waited,
                f"{_requests(count)} for KV from {NO_SERVERS.get(peer, peer)}, the oldest for {waited:.0f} s, and no transfer "
                "and no handshake has been begun",
                peer,
                f"{count} request{'s' if count > 1 else ''} waited for KV from {NO_SERVERS.get(peer, peer)} for up to {waited:.0f} s, and no "
                "transfer and no handshake was begun",
            )


def loads_missing(engine: EngineState, limits: Limits) -> Iterator[Stall]:
    """Yield that requests were to load their prompt's KV, and none of it was loaded although nothing failed."""
    core = engine.core
    if core is None or core.progress is None:
        return
    first, last = core.history.first, core.history.last
    count, asked = last.unloaded - first.unloaded, last.to_load - first.to_load
    if count >= limits.unloaded:
        yield Stall(
            StallKind.LOAD_MISSING,
            count,
            first.time,
            f"in the last {_minutes(last.time - first.time)}, {count} of {max(asked, count)} requests should have loaded "
            "KV but no load was started; their prompts were computed on this engine",
        )


def no_transfer_params(engine: EngineState, limits: Limits, *, present: bool) -> Iterator[Stall]:
    """Yield that the requests of an engine that is to load KV name none; *present*: it has been so."""
    core, facts = engine.core, engine.facts
    if core is None or core.progress is None or facts is None or not facts.kv_connector:
        return
    first, last = core.history.first, core.history.last
    requests = last.requests - first.requests
    if requests < limits.requests or not _expects_params(facts, last.to_load):
        return
    without = requests - (last.to_load - first.to_load)
    if without >= requests * (limits.share_kept if present else limits.share):
        yield Stall(
            StallKind.NO_TRANSFER_PARAMS,
            without,
            first.time,
            f"{without} of {requests} requests of the last {_minutes(last.time - first.time)} came without "
            "kv_transfer_params that name KV to load; their prompts are computed here",
        )


def _expects_params(facts: EngineFacts, to_load: int) -> bool:
    """Return whether requests with KV to load are expected: some have come, or a person has said that it decodes."""
    told = facts.role == common.ROLE_DECODE and not facts.role_guessed
    return to_load > 0 or (told and facts.kv_connector in TAKES_PARAMS)


def _requests(count: int) -> str:
    return f"{count} requests wait" if count > 1 else "1 request waits"


_IN_MINUTES: Final = 90


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= _IN_MINUTES else f"{seconds:.0f} s"
