"""Conversion of spans to the SDK's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode
from penstock.agent.model import EngineKey, Source
from penstock.agent.sources.engines import EngineRoles
from penstock.agent.traces.spans import semconv
from penstock.agent.traces.spans.model import Span, SpanLink
from penstock.agent.traces.spans.sdk_spans import SpanConverter, resource_attributes, service_name
from penstock.proto.v1 import common_pb2
from penstock.proto.v1.snapshot_pb2 import EngineFacts

from tests.support.agent.batches import TIME
from tests.support.agent.stories import DECODE_CORE, DECODE_WORKER

SPAN = Span(
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
    parent_span_id="00f067aa0ba902b7",
    name="kv.load",
    start_unix_nano=TIME,
    end_unix_nano=TIME + 5,
    source=DECODE_CORE,
    attributes={"penstock.peer": "10.0.0.7:5600", "penstock.ranks": (0, 1)},
    client=True,
    error="handshake refused",
    links=(SpanLink("1" * 32, "2" * 16, "penstock.request"),),
    tracestate="vendor=1",
    remote_parent=True,
)


def test_a_span_is_carried_over_whole():
    """Ids, times, parent, link, status and attributes are equal."""
    readable = SpanConverter().readable(SPAN, replayed=False)
    context, parent = readable.context, readable.parent
    assert f"{context.trace_id:032x}-{context.span_id:016x}" == f"{SPAN.trace_id}-{SPAN.span_id}"
    assert parent is not None
    assert f"{parent.trace_id:032x}-{parent.span_id:016x}" == f"{SPAN.trace_id}-{SPAN.parent_span_id}"
    assert parent.is_remote
    assert context.trace_state.to_header() == "vendor=1"
    assert (readable.start_time, readable.end_time) == (TIME, TIME + 5)
    assert readable.kind is SpanKind.CLIENT
    assert (readable.status.status_code, readable.status.description) == (StatusCode.ERROR, SPAN.error)
    assert dict(readable.attributes or {}) == dict(SPAN.attributes)
    (link,) = readable.links
    assert (link.context.span_id, dict(link.attributes or {})) == (
        int("2" * 16, 16),
        {"penstock.link": "penstock.request"},
    )


def test_a_tracestate_that_is_none_is_left_out_in_silence(caplog):
    """An invalid tracestate is left out without a log line."""
    for text in ("no member", "a=1,a=2", "a" * 300 + "=1", ",".join(f"k{n}=v" for n in range(40))):
        readable = SpanConverter().readable(replace(SPAN, tracestate=text), replayed=False)
        assert readable.context.trace_state.to_header() == ""
    assert caplog.records == []


def test_a_root_has_no_parent():
    """An empty parent id gives no parent, not an id of zeros."""
    root = SpanConverter().readable(replace(SPAN, parent_span_id="", error=None, client=False), replayed=True)
    assert root.parent is None
    assert root.kind is SpanKind.INTERNAL
    assert root.status.status_code is StatusCode.UNSET
    assert root.attributes is not None
    assert root.attributes["penstock.replayed"] is True


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("decode", "vllm-decode"),
        ("encoder", "vllm-encoder"),
        ("both", "vllm-prefill-decode"),
        ("unspecified", "vllm"),
        ("", "vllm"),
    ],
)
def test_service_name(role, name):
    """The service name has the role, if there is one."""
    assert service_name(replace(DECODE_CORE, role=role)) == name


def test_resource_of_an_engine():
    """The resource has the engine's pod, node and labels; its processes share them."""
    attributes = resource_attributes(DECODE_CORE, "host-1")
    assert attributes == {
        "service.name": "vllm-decode",
        "service.namespace": "serving",
        "service.instance.id": "llama-0/decode/0",
        "service.version": "0.32.0",
        "penstock.role": "decode",
        "penstock.role_guessed": False,
        "penstock.model": "tiny",
        "penstock.server": "decode",
        "penstock.engine": "0",
        "k8s.pod.name": "llama-0",
        "k8s.namespace.name": "serving",
        "k8s.pod.uid": "uid-1",
        "k8s.node.name": "node-1",
        "penstock.label.tier": "gold",
    }
    assert attributes == resource_attributes(DECODE_WORKER, "host-1")


def test_resource_of_an_engine_without_a_name():
    """A source without a name gets a default service name and instance."""
    told = {"service.name": "vllm", "penstock.role": "unspecified", "penstock.role_guessed": False}
    assert resource_attributes(Source(1, EngineKey("", ""), "api"), "") == {
        **told,
        "service.instance.id": "unknown",
    }
    assert resource_attributes(Source(1, EngineKey("", "0"), "worker"), "host-1") == {
        **told,
        "service.instance.id": "host-1/0",
        "penstock.engine": "0",
    }


def test_the_schema_is_named_and_known():
    """Resource and scope have the schema URL of OpenTelemetry's conventions in use."""
    readable = SpanConverter().readable(SPAN, replayed=False)
    assert readable.instrumentation_scope is not None
    assert readable.resource.schema_url == readable.instrumentation_scope.schema_url == semconv.SCHEMA_URL
    assert semconv.SCHEMA_URL in {schema.value for schema in Schemas}
    (sent,) = encode_spans([readable]).resource_spans
    assert (sent.schema_url, sent.scope_spans[0].schema_url) == (semconv.SCHEMA_URL, semconv.SCHEMA_URL)


def test_the_role_is_that_of_the_engine():
    """A role that arrives later applies to later spans of both processes."""
    roles = EngineRoles()
    core, worker = (replace(each, role="unspecified") for each in (DECODE_CORE, DECODE_WORKER))
    converter = SpanConverter(roles.described)
    assert converter.resource(worker).attributes["service.name"] == "vllm"
    roles.note(core, EngineFacts(role=common_pb2.ROLE_PREFILL, role_guessed=True))
    for each in (core, worker):
        attributes = converter.resource(each).attributes
        assert attributes["service.name"] == "vllm-prefill"
        assert (attributes["penstock.role"], attributes["penstock.role_guessed"]) == ("prefill", True)
    roles.forget(core.key)
    assert converter.resource(core).attributes["penstock.role"] == "unspecified"


def test_the_environment_wins(monkeypatch):
    """OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and the attribute limits apply."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,service.version=7")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4")
    readable = SpanConverter().readable(SPAN, replayed=False)
    resource = readable.resource.attributes
    assert resource["service.name"] == "mine"
    assert resource["deployment.environment.name"] == "prod"
    assert resource["service.version"] == "7"
    assert resource["k8s.pod.name"] == "llama-0"
    assert len(readable.attributes or {}) == 1
    long = replace(SPAN, attributes={"penstock.peer": "10.0.0.7"})
    attributes = SpanConverter().readable(long, replayed=False).attributes or {}
    assert attributes["penstock.peer"] == "10.0"
