"""Builders of wire messages for tests."""

from __future__ import annotations

import base64
import random
from typing import TYPE_CHECKING, Any

from penstock.proto.v1.common_pb2 import (
    CHANNEL_KV,
    COMPONENT_SCHEDULER,
    COMPONENT_WORKER,
    DEFERRAL_ENDING_READY,
    DEFERRAL_REASON_REMOTE_KV,
    DIRECTION_RECEIVE,
    ERROR_TYPE_REFUSED,
    FAILURE_MODE_HANDSHAKE,
    TRANSFER_RESULT_OK,
)
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

# A moment in 2025; tests that care give their own.
TIME = 1_750_000_000_000_000_000
PEER = "10.0.0.7:5600"


def noise(size: int) -> str:
    """Return random text, which cannot be compressed to less than three quarters."""
    return base64.b64encode(random.randbytes(size)).decode()[:size]


def event(
    kind: str, request_id: str = "", *, time_ns: int = TIME, component: int = COMPONENT_SCHEDULER, **body: Any
) -> Event:
    """Build an event whose body is the message *kind* with the fields *body*."""
    fields: dict[str, Any] = {"component": component, kind: body}
    return Event(time_unix_nano=time_ns, request_id=request_id, **fields)


def transfer_failure(request_id: str, *, peer: str = PEER, time_ns: int = TIME, **body: Any) -> Event:
    """Build a failed handshake; *body* overrides."""
    fields: dict[str, Any] = {
        "channel": CHANNEL_KV,
        "connector": "NixlConnector",
        "direction": DIRECTION_RECEIVE,
        "mode": FAILURE_MODE_HANDSHAKE,
        "error_type": ERROR_TYPE_REFUSED,
        "peer": {"address": peer},
    }
    return event(
        "transfer_failure", request_id, time_ns=time_ns, component=COMPONENT_WORKER, **{**fields, **body}
    )


def deferral_start(request_id: str, *, peer: str = PEER, time_ns: int = TIME, **body: Any) -> Event:
    """Build the start of a wait for remote KV."""
    fields = {"reason": DEFERRAL_REASON_REMOTE_KV, "channel": CHANNEL_KV, "peer": {"address": peer}}
    return event("deferral_start", request_id, time_ns=time_ns, **{**fields, **body})


def deferral_end(
    request_id: str, *, peer: str = PEER, start_ns: int = TIME, time_ns: int = TIME, **body: Any
) -> Event:
    """Build its end."""
    fields: dict[str, Any] = {
        "reason": DEFERRAL_REASON_REMOTE_KV,
        "channel": CHANNEL_KV,
        "peer": {"address": peer},
        "ending": DEFERRAL_ENDING_READY,
        "start_time_unix_nano": start_ns,
    }
    return event("deferral_end", request_id, time_ns=time_ns, **{**fields, **body})


def add_transfers(
    batch: Batch, request_ids: Sequence[str], *, peer: str = PEER, size: int = 1 << 20
) -> Batch:
    """Add one good transfer of *size* bytes and 10 ms for each request; returns *batch*."""
    strings = ["", "NixlConnector", peer, "engine-id", *request_ids]
    count = len(request_ids)
    batch.strings[:] = strings
    columns = batch.transfers
    columns.end_time_unix_nano.extend(TIME + n for n in range(count))
    columns.duration_nano.extend([10_000_000] * count)
    columns.bytes.extend([size] * count)
    columns.descriptors.extend([4] * count)
    columns.post_duration_nano.extend([1_000] * count)
    columns.end_uncertainty_nano.extend([0] * count)
    columns.channel.extend([CHANNEL_KV] * count)
    columns.direction.extend([DIRECTION_RECEIVE] * count)
    columns.result.extend([TRANSFER_RESULT_OK] * count)
    columns.component.extend([COMPONENT_WORKER] * count)
    columns.rank.extend([0] * count)
    columns.connector.extend([1] * count)
    columns.peer.extend([2] * count)
    columns.peer_engine_id.extend([3] * count)
    columns.request_id.extend(range(4, 4 + count))
    return batch


def sample_batch(request_ids: Sequence[str], **fields: Any) -> Batch:
    """Build a batch that holds one good transfer for each request."""
    return add_transfers(Batch(**fields), request_ids)
