"""Logs and live sources for the tests of the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from penstock.agent.metrics.agent_metrics import AgentMetrics
from penstock.agent.metrics.gatherer import Exemplars, Gatherer
from penstock.agent.model import EngineKey, Source
from penstock.agent.sources.registry import LiveSource
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events
from penstock.proto.v1.ingest_pb2 import Batch, Drop, GuardError, Tombstone

from tests.support.agent.batches import TIME, event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.metrics.aggregator import Aggregator
    from penstock.proto.v1.snapshot_pb2 import Snapshot

SECOND = 10**9

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For property tests on a machine that is busy with other things."""

PREFILL = "10.0.0.7:5600"


def source(
    engine: str = "0", process: str = "engine-core", rank: int = 0, server: str = "", epoch: int = 1
) -> Source:
    """Build a source."""
    return Source(epoch=epoch, key=EngineKey(server, engine), process=process, rank=rank)


def live(
    of: Source, snapshot: Snapshot | None = None, *, connected: bool = True, seen: int = TIME
) -> LiveSource:
    """Build a registry's view of a source."""
    return LiveSource(of, connected, seen, 0, snapshot)


def exposition(
    aggregator: Aggregator,
    sources: Sequence[LiveSource] = (),
    exemplars: Exemplars | None = None,
    *,
    engines_expected: int = 0,
    wanted: Any = None,
) -> Gatherer:
    """Build an exposition."""
    agent = AgentMetrics(TIME - 3600 * SECOND, engines_expected)
    return Gatherer(
        aggregator,
        lambda: sources,
        exemplars or Exemplars(),
        agent,
        wanted=wanted,
    )


def transfers(rows: Sequence[tuple[int, int, str, Any]], *, time_ns: int = TIME) -> Batch:
    """Build a batch of transfers from (duration in ns, bytes, peer, result), received over NIXL."""
    batch = Batch(strings=["", "NixlConnector"])
    places = {text: index for index, text in enumerate(batch.strings)}
    columns = batch.transfers
    for duration, size, peer, result in rows:
        if peer not in places:
            places[peer] = len(batch.strings)
            batch.strings.append(peer)
        columns.end_time_unix_nano.append(time_ns)
        columns.duration_nano.append(duration)
        columns.bytes.append(size)
        columns.descriptors.append(1)
        columns.post_duration_nano.append(0)
        columns.end_uncertainty_nano.append(0)
        columns.channel.append(common.CHANNEL_KV)
        columns.direction.append(common.DIRECTION_RECEIVE)
        columns.result.append(result)
        columns.component.append(common.COMPONENT_WORKER)
        columns.rank.append(0)
        columns.connector.append(1)
        columns.peer.append(places[peer])
        columns.peer_engine_id.append(0)
        columns.request_id.append(0)
    return batch


def probes(rows: Sequence[tuple[str, Any]], *, time_ns: int = TIME) -> Batch:
    """Build a batch of probes from (peer, result)."""
    batch = Batch(strings=["", "ZmqECConnector", *(peer for peer, _ in rows)])
    for index, (_, result) in enumerate(rows):
        batch.probes.end_time_unix_nano.append(time_ns)
        batch.probes.duration_nano.append(1000)
        batch.probes.result.append(result)
        batch.probes.connector.append(1)
        batch.probes.peer.append(index + 2)
        batch.probes.request_id.append(0)
    return batch


_PEERS = st.sampled_from(["", PREFILL, "10.0.0.8:5600", 'odd"\\\n', "rank:3"])
_TIMES = st.integers(TIME, TIME + 3600 * SECOND)


def _enum(enum: Any) -> st.SearchStrategy[int]:
    return st.sampled_from(enum.values())


_EVENTS = st.one_of(
    st.builds(
        lambda peer, time_ns, mode, kind: event(
            "transfer_failure",
            "r",
            time_ns=time_ns,
            channel=common.CHANNEL_KV,
            connector="NixlConnector",
            mode=mode,
            error_type=kind,
            peer={"address": peer},
        ),
        _PEERS,
        _TIMES,
        _enum(common.FailureMode),
        _enum(common.ErrorType),
    ),
    st.builds(
        lambda peer, time_ns, outcome, tokens: event(
            "load_outcome",
            "r",
            time_ns=time_ns,
            channel=common.CHANNEL_KV,
            outcome=outcome,
            peer={"address": peer},
            tokens_recomputed=tokens,
        ),
        _PEERS,
        _TIMES,
        _enum(common.Outcome),
        st.integers(0, 1 << 40),
    ),
    st.builds(
        lambda peer, time_ns, reason, ending, waited: event(
            "deferral_end",
            "r",
            time_ns=time_ns,
            reason=reason,
            peer={"address": peer},
            ending=ending,
            start_time_unix_nano=0 if waited is None else time_ns - waited,
        ),
        _PEERS,
        _TIMES,
        # 99 is of a newer engine.
        st.sampled_from([*common.DeferralReason.values(), 99]),
        st.sampled_from([common.DEFERRAL_ENDING_READY, common.DEFERRAL_ENDING_TIMEOUT]),
        st.none() | st.integers(-SECOND, 700 * SECOND),
    ),
    st.builds(
        lambda time_ns, before: event(
            "eplb_rebalance",
            time_ns=time_ns,
            trigger=events.EPLB_TRIGGER_INTERVAL,
            duration_nano=5 * SECOND,
            balancedness_before=before,
            layers=[{"experts_unchanged": 3, "experts_received_remotely": 1}],
        ),
        _TIMES,
        st.floats(0, 1),
    ),
    st.builds(
        lambda time_ns, first_token, gates: event(
            "request_closed",
            "r",
            time_ns=time_ns,
            first_token_time_unix_nano=first_token,
            **({"gates": gates} if gates is not None else {}),
        ),
        _TIMES,
        st.sampled_from([0, TIME]),
        st.none() | st.fixed_dictionaries({"own_prefill_nano": st.sampled_from([0, 1, 10**9, 2**63])}),
    ),
    st.builds(lambda time_ns: events.Event(time_unix_nano=time_ns), _TIMES),
)
_TRANSFERS = st.builds(
    lambda rows, time_ns: transfers(rows, time_ns=time_ns),
    st.lists(
        st.tuples(st.integers(0, 1 << 45), st.integers(0, 1 << 40), _PEERS, _enum(common.TransferResult)),
        max_size=20,
    ),
    _TIMES,
)
_LOSSES = st.builds(
    lambda reason, count: Batch(
        drops=[Drop(reason=reason, kind="handshake", count=count)],
        tombstone=Tombstone(lost=[Drop(kind="transfer_sample", count=count)]),
        guard_errors=[GuardError(hook="nixl", error_class="KeyError", count=count)],
    ),
    st.sampled_from(["queue_full", "oversize", ""]),
    st.integers(1, 1000),
)
BATCHES = st.one_of(
    st.builds(lambda rows: Batch(events=rows), st.lists(_EVENTS, max_size=8)), _TRANSFERS, _LOSSES
)
"""Batches of all kinds, with few label values so that they meet."""

LOGS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                source(),
                source(process="worker", rank=1, epoch=2),
                source(engine="1", epoch=3),
                source(engine="", process="api", epoch=4),
            ]
        ),
        BATCHES,
    ),
    max_size=25,
)
"""Logs of four sources of two engines and a front end."""
