"""The export to a trace backend of another project, over both protocols: what arrives is the traces, whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.agent.traces.spans import semconv
from penstock.proto.v1 import common_pb2
from penstock.proto.v1.admin_pb2 import GetTraceRequest
from penstock.proto.v1.admin_pb2_grpc import AdminStub
from penstock.proto.v1.common_pb2 import ROLE_DECODE, ROLE_PREFILL

from tests.support.agent.agent import HASTY_AGENT, running_agent, wait_until
from tests.support.agent.batches import deferral_end, deferral_start
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.stories import closed, closed_decode, failed_load, handshake, lease, outcome
from tests.support.otlp.phoenix import PROJECT, Phoenix, needs_phoenix, running_phoenix

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.proto.v1.admin_pb2 import Span
    from penstock.proto.v1.events_pb2 import Event

pytestmark = needs_phoenix

REQUESTS = 60
OUTCOMES = (None, common_pb2.OUTCOME_RECOMPUTED, common_pb2.OUTCOME_FAILED)


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[Phoenix]:
    """Run one for each protocol: ids of spans follow from the requests', and it keeps one span of an id."""
    with running_phoenix(tmp_path) as phoenix:
        yield phoenix


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_every_span_arrives_and_none_is_orphaned(phoenix, protocol):
    """Of successful, recomputed and failed requests: the spans of ``agentctl trace``, with parents and attributes."""
    project = f"penstock-{protocol.partition('/')[0]}"
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": phoenix.endpoints[protocol],
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_RESOURCE_ATTRIBUTES": f"{PROJECT}={project}",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50",
    }
    with (
        running_agent(env=env, module=HASTY_AGENT) as agent,
        FakeEngine(agent.listen, engine="0", role=ROLE_PREFILL) as prefill,
        FakeEngine(agent.listen, engine="1", role=ROLE_DECODE) as decode,
        grpc.insecure_channel(agent.admin) as channel,
    ):
        for number in range(REQUESTS):
            prefill.publish(
                closed(_prefill(number), kv_role=ROLE_PREFILL, external_request_id=f"chat-{number}"),
                lease(_prefill(number)),
            )
            decode.publish(*_decode_story(number))
        admin = AdminStub(channel)
        expected: dict[str, Span] = {
            span.span_id: span
            for number in range(REQUESTS)
            for request in (_prefill(number), _decode(number))
            for span in admin.GetTrace(GetTraceRequest(request_id=request), timeout=30).spans
        }
        wait_until(
            lambda: agent.metric("penstock_agent_spans_total", result="exported") == len(expected),
            "the backend has taken every span",
        )
        # It stores them a moment after it has taken them.
        wait_until(lambda: len(phoenix.spans(project)) >= len(expected), "the backend shows every span")
    stored = phoenix.spans(project)
    arrived = {span["context"]["span_id"]: span for span in stored}

    missing, foreign = expected.keys() - arrived.keys(), arrived.keys() - expected.keys()
    orphaned = {span["parent_id"] for span in stored if span["parent_id"]} - arrived.keys()
    twice = len(stored) - len(arrived)
    print(  # noqa: T201  (what `make test-trace-backend` shows)
        f"{protocol}: {len(expected)} spans of {2 * REQUESTS} requests sent, {len(arrived)} stored, "
        f"{len(missing)} missing, {len(foreign)} unknown, {twice} twice, {len(orphaned)} parents missing"
    )
    assert (missing, foreign, orphaned, twice) == (set(), set(), set(), 0)
    for span_id, span in expected.items():
        there = arrived[span_id]
        assert (there["name"], there["parent_id"] or "") == (span.name, span.parent_span_id)
        assert (there["status_code"] == "ERROR") == (span.status == "error")
    outcomes = [span["attributes"].get(semconv.OUTCOME) for span in stored if span["name"] == semconv.REQUEST]
    for word in ("recomputed", "failed"):
        assert outcomes.count(word) == REQUESTS / len(OUTCOMES)


def _prefill(number: int) -> str:
    return f"cmpl-chat-{number}-0-aaaaaaaa"


def _decode(number: int) -> str:
    return f"cmpl-chat-{number}-0-bbbbbbbb"


def _decode_story(number: int) -> list[Event]:
    """Return what the decode side says of a request: every third is recomputed, every third fails."""
    decode, prefill, kind = _decode(number), _prefill(number), OUTCOMES[number % len(OUTCOMES)]
    trouble: list[Event] = []
    if kind is not None:
        trouble = [
            handshake(decode, number=number + 1),
            failed_load(decode, remote_request_id=prefill, handshake_id=number + 1),
            outcome(decode, kind),
        ]
    reason = "error" if kind == common_pb2.OUTCOME_FAILED else "stop"
    return [
        deferral_start(decode, remote_request_id=prefill),
        *trouble,
        deferral_end(decode),
        closed_decode(decode, prefill, finish_reason=reason, external_request_id=f"chat-{number}"),
    ]
