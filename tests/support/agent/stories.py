"""What engines tell about requests, event by event: the raw material of spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.batch.rows import ProbeSample, TransferSample
from penstock.agent.ingest.loss_detector import loss_batch
from penstock.agent.journal.agent_log import agent_source
from penstock.agent.model import EngineKey, LoggedBatch, Source
from penstock.proto.v1 import common_pb2, events_pb2
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable

from tests.support.agent.batches import PEER, TIME, deferral_end, deferral_start, event, transfer_failure

MS = 1_000_000
SECOND = 1_000_000_000
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = TRACEPARENT[:-2] + "00"

PREFILL = "cmpl-chat-0-aaaaaaaa"
DECODE = "cmpl-chat-0-bbbbbbbb"
HANDSHAKE = 0xABCDEF

_LABELS = {
    "POD_NAME": "llama-0",
    "POD_NAMESPACE": "serving",
    "POD_UID": "uid-1",
    "NODE_NAME": "node-1",
    "tier": "gold",
}


def source(epoch: int, server: str, role: str, process: str = "engine-core") -> Source:
    """Build a source of engine 0 of *server*."""
    return Source(
        epoch=epoch,
        key=EngineKey(server, "0"),
        process=process,
        role=role,
        model="tiny",
        vllm_version="0.32.0",
        labels=_LABELS,
    )


PREFILL_CORE = source(11, "prefill", "prefill")
DECODE_CORE = source(21, "decode", "decode")
DECODE_WORKER = source(22, "decode", "decode", "worker")
AGENT = agent_source(1, DECODE_CORE.key)
SOURCES = {each.epoch: each for each in (PREFILL_CORE, DECODE_CORE, DECODE_WORKER, AGENT)}


def sample(request_id: str, **fields: Any) -> TransferSample:
    """Build a good KV transfer of 1 MiB in 10 ms; *fields* override."""
    values = {
        "end_time_unix_nano": TIME + 60 * MS,
        "duration_nano": 10 * MS,
        "bytes": 1 << 20,
        "descriptors": 4,
        "post_duration_nano": 1000,
        "channel": common_pb2.CHANNEL_KV,
        "direction": common_pb2.DIRECTION_RECEIVE,
        "result": common_pb2.TRANSFER_RESULT_OK,
        "component": common_pb2.COMPONENT_WORKER,
        "rank": 0,
        "connector": "NixlConnector",
        "peer": PEER,
        "peer_engine_id": "engine-id",
        "request_id": request_id,
    }
    return TransferSample(**{**values, **fields})


def probe(request_id: str, result: int = common_pb2.PROBE_RESULT_HIT, **fields: Any) -> ProbeSample:
    """Build a probe of 2 ms; *fields* override."""
    values = {
        "end_time_unix_nano": TIME + 8 * MS,
        "duration_nano": 2 * MS,
        "result": result,
        "connector": "ZmqECConnector",
        "peer": PEER,
        "request_id": request_id,
    }
    return ProbeSample(**{**values, **fields})


def closed(request_id: str, *, time_ns: int = TIME + 500 * MS, **body: Any) -> Event:
    """Build the end of a request that arrived at TIME and stopped by itself."""
    fields: dict[str, Any] = {
        "external_request_id": "chat",
        "arrival_time_unix_nano": TIME,
        "scheduled_time_unix_nano": TIME + 5 * MS,
        "first_token_time_unix_nano": TIME + 100 * MS,
        "prompt_tokens": 412,
        "output_tokens": 16,
        "finish_reason": "stop",
    }
    return event("request_closed", request_id, time_ns=time_ns, **{**fields, **body})


def closed_decode(request_id: str = DECODE, remote: str = PREFILL, **body: Any) -> Event:
    """Build the end of a request on the decode side."""
    fields = {"kv_role": common_pb2.ROLE_DECODE, "remote_request_id": remote, "peer": {"address": PEER}}
    return closed(request_id, **{**fields, "external_cached_tokens": 400, **body})


def clean_up(request_id: str = DECODE, remote: str = PREFILL, **body: Any) -> Event:
    """Build the end of vLLM's own request that frees the blocks of a prefill."""
    fields = {"scheduled_time_unix_nano": 0, "first_token_time_unix_nano": 0, "external_cached_tokens": 0}
    ended = {"prompt_tokens": 1, "output_tokens": 0, "finish_reason": "abort"}
    return closed_decode(request_id, remote, **{**fields, **ended, "external_request_id": request_id, **body})


def outcome(request_id: str, kind: int = common_pb2.OUTCOME_RECOMPUTED, **body: Any) -> Event:
    """Build what was done about a refused handshake."""
    fields: dict[str, Any] = {
        "channel": common_pb2.CHANNEL_KV,
        "outcome": kind,
        "decided_by": common_pb2.DECIDED_BY_POLICY,
        "mode": common_pb2.FAILURE_MODE_HANDSHAKE,
        "error_type": common_pb2.ERROR_TYPE_REFUSED,
        "peer": {"address": PEER},
        "attempt": 1,
        "tokens_kept": 12,
        "tokens_recomputed": 400,
        "policy_hash": "0123456789abcdef0123",
        "reason": "recompute is the policy",
    }
    return event(
        "load_outcome", request_id, time_ns=body.pop("time_ns", TIME + 61 * MS), **{**fields, **body}
    )


def handshake(*waiting: str, failed: bool = True, number: int = HANDSHAKE, **body: Any) -> Event:
    """Build a handshake that took from 10 to 60 ms."""
    fields: dict[str, Any] = {
        "id": number,
        "connector": "NixlConnector",
        "peer": {"address": PEER, "engine_id": "engine-id"},
        "result": common_pb2.TRANSFER_RESULT_ERROR if failed else common_pb2.TRANSFER_RESULT_OK,
        "queued_time_unix_nano": TIME + 9 * MS,
        "start_time_unix_nano": TIME + 10 * MS,
        "end_time_unix_nano": TIME + 60 * MS,
        "waiting_request_ids": waiting,
        "waiters_total": len(waiting),
    }
    if failed:
        fields |= {"error_type": common_pb2.ERROR_TYPE_REFUSED, "error_text": "connection refused"}
    return event(
        "handshake", time_ns=TIME + 60 * MS, component=common_pb2.COMPONENT_WORKER, **{**fields, **body}
    )


def lease(request_id: str = PREFILL, *, expired: bool = False, time_ns: int = TIME + 800 * MS) -> Event:
    """Build the end of a lease that began at 500 ms."""
    ending = events_pb2.LEASE_ENDING_EXPIRED if expired else events_pb2.LEASE_ENDING_READ
    return event(
        "lease_closed",
        request_id,
        time_ns=time_ns,
        ending=ending,
        start_time_unix_nano=TIME + 500 * MS,
        blocks=26,
        readers=1,
        connector="NixlConnector",
    )


def lost(of: Source, *, last_seen: int = TIME + SECOND) -> Event:
    """Build what the agent writes when a source vanished."""
    return event(
        "source_lost",
        time_ns=last_seen + SECOND,
        epoch=of.epoch,
        process=of.process,
        last_seen_unix_nano=last_seen,
    )


def failed_load(request_id: str = DECODE, **body: Any) -> Event:
    """Build the refused handshake of a request's load, as a rank sees it."""
    fields: dict[str, Any] = {
        "error_class": "ConnectionRefusedError",
        "error_text": "connection refused",
        "remote_request_id": PREFILL,
        "attempt": 1,
        "handshake_id": HANDSHAKE,
        "start_time_unix_nano": TIME + 10 * MS,
        "upstream_type": "handshake_failed",
    }
    return transfer_failure(request_id, time_ns=body.pop("time_ns", TIME + 60 * MS), **{**fields, **body})


def prefill_story(**closing: Any) -> list[tuple[Source, Event | TransferSample]]:
    """Tell a request on the prefill side, whose blocks were read."""
    ending = closed(PREFILL, kv_role=common_pb2.ROLE_PREFILL, leased_blocks=26, **closing)
    return [(PREFILL_CORE, ending), (PREFILL_CORE, lease())]


def decode_story(**closing: Any) -> list[tuple[Source, Event | TransferSample]]:
    """Tell the decode side of it, loaded by two ranks after a good handshake."""
    return [
        (DECODE_CORE, deferral_start(DECODE, time_ns=TIME + 5 * MS, remote_request_id=PREFILL)),
        (DECODE_WORKER, handshake(DECODE, failed=False)),
        (DECODE_WORKER, sample(DECODE)),
        (DECODE_WORKER, sample(DECODE, rank=1, end_time_unix_nano=TIME + 62 * MS)),
        (DECODE_CORE, deferral_end(DECODE, start_ns=TIME + 5 * MS, time_ns=TIME + 65 * MS)),
        (DECODE_CORE, closed_decode(**closing)),
    ]


def failed_story(
    kind: int = common_pb2.OUTCOME_RECOMPUTED, **closing: Any
) -> list[tuple[Source, Event | TransferSample]]:
    """Tell the decode side after a refused handshake, as two ranks see it."""
    return [
        (DECODE_CORE, deferral_start(DECODE, time_ns=TIME + 5 * MS, remote_request_id=PREFILL)),
        (DECODE_WORKER, handshake(DECODE)),
        (DECODE_WORKER, failed_load()),
        (DECODE_WORKER, failed_load(time_ns=TIME + 61 * MS, error_text="connection refused")),
        (DECODE_CORE, outcome(DECODE, kind)),
        (DECODE_CORE, deferral_end(DECODE, start_ns=TIME + 5 * MS, time_ns=TIME + 62 * MS)),
        (DECODE_CORE, closed_decode(**closing)),
    ]


def fill(batch: Batch, entries: Iterable[Event | TransferSample | ProbeSample]) -> Batch:
    """Put *entries* into *batch*; returns it."""
    strings: dict[str, int] = {"": 0}
    for entry in entries:
        if isinstance(entry, Event):
            batch.events.append(entry)
            continue
        columns = batch.probes if isinstance(entry, ProbeSample) else batch.transfers
        for name, value in entry._asdict().items():
            if value is None:
                continue  # as an older engine, which has no such column
            cell = strings.setdefault(value, len(strings)) if isinstance(value, str) else value
            getattr(columns, name).append(cell)
    batch.strings[:] = list(strings)
    return batch


class Log:
    """A log in memory: what the journal would hold."""

    def __init__(self) -> None:
        self.batches: list[LoggedBatch] = []
        self.now = TIME + 600 * MS
        self._sequence: dict[int, int] = {}

    def add(
        self,
        source: Source,
        *entries: Event | TransferSample | ProbeSample,
        after: int = MS,
        **fields: Any,
    ) -> LoggedBatch:
        """Append one batch of *source*, received *after* nanoseconds later than the one before."""
        self.now += after
        seq = self._sequence[source.epoch] = self._sequence.get(source.epoch, 0) + 1
        batch = fill(Batch(epoch=source.epoch, seq=seq, **fields), entries)
        logged = LoggedBatch(len(self.batches) + 1, source.epoch, seq, self.now, batch.SerializeToString())
        self.batches.append(logged)
        return logged

    def lose(self, source: Source, *, last_seen: int, after: int = MS) -> LoggedBatch:
        """Append what the agent writes when *source* vanished: the end of each deferral that it left open, and the loss."""
        opened: dict[tuple[str, int], Event] = {}
        for logged in self.batches:
            for each in Batch.FromString(logged.body).events if logged.epoch == source.epoch else ():
                if each.HasField("deferral_start"):
                    opened[each.request_id, each.deferral_start.reason] = each
                elif each.HasField("deferral_end"):
                    opened.pop((each.request_id, each.deferral_end.reason), None)
        agent = agent_source(1, source.key)
        batch = loss_batch(
            source, 0, 0, opened.values(), open_deferrals=len(opened), last_seen=last_seen, now=self.now
        )
        return self.add(agent, *batch.events, after=after)

    def tell(
        self, story: Iterable[tuple[Source, Event | TransferSample | ProbeSample]], after: int = MS
    ) -> None:
        """Append a story, one batch for each entry."""
        for teller, entry in story:
            self.add(teller, entry, after=after)
