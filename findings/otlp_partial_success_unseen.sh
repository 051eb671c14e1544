#!/usr/bin/env bash
# opentelemetry-exporter-otlp 1.45.2 (Python, gRPC and HTTP): spans that a receiver refuses count as exported.
#
# Seen: a receiver answers OK with partial_success {rejected_spans: 1, error_message: …}, as OTLP lets it. Both exporters
# return SpanExportResult.SUCCESS and log nothing, so neither the program nor its operator learns that the span is gone.
# Expected: at the least a line in the log with the receiver's words.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet opentelemetry-sdk==1.45.2 opentelemetry-exporter-otlp-proto-grpc==1.45.2 \
    opentelemetry-exporter-otlp-proto-http==1.45.2 grpcio==1.85.3

env -u OTEL_SDK_DISABLED "$work/venv/bin/python" - <<'PYTHON'
import http.server
import logging
import threading
from concurrent import futures
from importlib.metadata import version

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

ANSWER = pb.ExportTraceServiceResponse()
ANSWER.partial_success.rejected_spans = 1
ANSWER.partial_success.error_message = "over the quota"
received, logged = [], []


class Keep(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())


logging.getLogger().addHandler(Keep())
logging.getLogger("opentelemetry").setLevel(logging.DEBUG)


class Receiver(pb_grpc.TraceServiceServicer):
    def Export(self, request, context):
        received.append("grpc")
        return ANSWER


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        received.append("http")
        body = ANSWER.SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = grpc.server(futures.ThreadPoolExecutor(1))
pb_grpc.add_TraceServiceServicer_to_server(Receiver(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
web = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=web.serve_forever, daemon=True).start()

memory = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(memory))
with provider.get_tracer("demo").start_as_current_span("lost"):
    pass
spans = memory.get_finished_spans()

results = {}
for name, exporter in {
    "grpc": OverGrpc(endpoint=f"127.0.0.1:{port}", insecure=True),
    "http": OverHttp(endpoint=f"http://127.0.0.1:{web.server_port}/v1/traces"),
}.items():
    results[name] = exporter.export(spans).name
    exporter.shutdown()
server.stop(None).wait()
web.shutdown()
words = [line for line in logged if "quota" in line or "reject" in line.lower() or "partial" in line.lower()]
print(version("opentelemetry-exporter-otlp-proto-grpc"), results, "received:", received, "logged of it:", words)
assert received == ["grpc", "http"], received
assert results == {"grpc": "SUCCESS", "http": "SUCCESS"}, results
assert not words, words
PYTHON
echo "still so: refused spans count as exported, and nothing is logged"
