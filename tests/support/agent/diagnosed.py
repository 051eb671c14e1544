"""Facts of a diagnosis made by hand: two windows of events, and engines that are well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.diagnosis import Facts, WindowFold, diagnose
from penstock.agent.model import EngineKey
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

from tests.support.agent.batches import PEER, TIME, event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.diagnosis import Verdict
    from penstock.proto.v1.events_pb2 import Event

SECOND = 1_000_000_000
NOW = TIME + 5_000 * SECOND
DECODE = EngineKey("decode", "0")


def at(seconds: float) -> int:
    """Return the time so many seconds ago, nanoseconds."""
    return NOW - int(seconds * SECOND)


def engine(server: str = "decode", role: int = common.ROLE_DECODE, **fields: Any) -> admin.Engine:
    """Build a connected engine with facts; *fields* override."""
    values: dict[str, Any] = {
        "key": {"server": server, "engine": "0"},
        "connected": True,
        "in_sync": True,
        "role": role,
        "facts": {"kv_connector": "NixlConnector", "num_gpu_blocks": 1000},
    }
    return admin.Engine(**{**values, **fields})


def closed(request_id: str, ago: float, **body: Any) -> Event:
    """Build the end of a decode request."""
    fields = {
        "kv_role": common.ROLE_DECODE,
        "peer": {"address": PEER},
        "arrival_time_unix_nano": at(ago + 1),
        "first_token_time_unix_nano": at(ago + 0.9),
        "prompt_tokens": 100,
        "finish_reason": "stop",
    }
    return event("request_closed", request_id, time_ns=at(ago), **{**fields, **body})


def waited(request_id: str, ago: float, seconds: float = 0.01, peer: str = PEER, **body: Any) -> Event:
    """Build the end of a wait for remote KV that took *seconds*."""
    fields = {
        "reason": common.DEFERRAL_REASON_REMOTE_KV,
        "channel": common.CHANNEL_KV,
        "ending": common.DEFERRAL_ENDING_READY,
        "start_time_unix_nano": at(ago + seconds),
        "peer": {"address": peer},
    }
    return event("deferral_end", request_id, time_ns=at(ago), **{**fields, **body})


def failed(request_id: str, ago: float, peer: str = PEER, **body: Any) -> Event:
    """Build a refused handshake."""
    fields = {
        "channel": common.CHANNEL_KV,
        "mode": common.FAILURE_MODE_HANDSHAKE,
        "error_type": common.ERROR_TYPE_REFUSED,
        "peer": {"address": peer},
    }
    return event("transfer_failure", request_id, time_ns=at(ago), **{**fields, **body})


def decided(request_id: str, ago: float, outcome: int = common.OUTCOME_FAILED, **body: Any) -> Event:
    """Build what was done about a refused handshake: vLLM failed the request."""
    fields = {
        "channel": common.CHANNEL_KV,
        "outcome": outcome,
        "decided_by": common.DECIDED_BY_VLLM,
        "mode": common.FAILURE_MODE_HANDSHAKE,
        "error_type": common.ERROR_TYPE_REFUSED,
        "peer": {"address": PEER},
        "tokens_recomputed": 100,
    }
    return event("load_outcome", request_id, time_ns=at(ago), **{**fields, **body})


def rebalances(*ago: float, pause: float = 1.2, ok: bool = True, rank: int = 0, **fields: Any) -> list[Event]:
    """Build rebalances on one rank that ended so many seconds ago, each with a pause of so many seconds."""
    result = common.TRANSFER_RESULT_OK if ok else common.TRANSFER_RESULT_ERROR
    rows = [
        event(
            "eplb_rebalance",
            time_ns=at(each),
            result=result,
            pause_nano=int(pause * 1e9),
            duration_nano=int(pause * 1e9),
            **fields,
        )
        for each in ago
    ]
    for row in rows:
        row.rank = rank
    return rows


def calm() -> list[Event]:
    """Tell of requests in both windows that are well."""
    times = [*range(30, 600, 60), *range(700, 4000, 100)]
    return [entry for ago in times for entry in (waited(f"ok-{ago}", ago), closed(f"ok-{ago}", ago))]


def facts_of(
    events: Iterable[Event] = (),
    *,
    key: EngineKey = DECODE,
    role: str = "decode",
    since: float = 600,
    baseline: float = 3600,
    engines: Iterable[admin.Engine] | None = None,
    more: Iterable[tuple[EngineKey, str, Event]] = (),
    **fields: Any,
) -> Facts:
    """Build facts of *events* of one engine, and *more* of others."""
    fold = WindowFold(NOW, since, baseline)
    for each in events:
        fold.add(key, role, each)
    for other, its_role, each in more:
        fold.add(other, its_role, each)
    for of_requests in (False, True):
        fold.note_read(0, of_requests=of_requests)
    known = [engine()] if engines is None else list(engines)
    return Facts(NOW, fold.present, fold.before, known, **fields)


def verdict_of(events: Iterable[Event] = (), **fields: Any) -> Verdict:
    """Diagnose :func:`facts_of`."""
    return diagnose(facts_of(events, **fields))
