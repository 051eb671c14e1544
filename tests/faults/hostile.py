"""Clients that no one would want: raw bytes on the engines' socket, messages made to hurt."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.internal import encoder, wire_format
from penstock.proto import SCHEMA_VERSION
from penstock.proto.v1.ingest_pb2 import Batch, Hello

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

METHOD = "/penstock.v1.Ingest/Publish"
POLICIES, HEALTH = "/penstock.v1.PolicyFeed/Watch", "/grpc.health.v1.Health/Watch"
EPOCH = 0xBAD

# HTTP/2's preface and an empty SETTINGS frame: a client that connects and then says nothing more.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def hello(epoch: int = EPOCH, engine: str = "bad") -> bytes:
    """Return a good first message."""
    who = Hello(schema_version=SCHEMA_VERSION, process="worker", key={"engine": engine})
    return Batch(epoch=epoch, hello=who).SerializeToString()


def field(number: int, content: bytes) -> bytes:
    """Return *content* as the field *number* of a message."""
    tag = encoder.TagBytes(number, wire_format.WIRETYPE_LENGTH_DELIMITED)
    return tag + encoder._VarintBytes(len(content)) + content  # type: ignore[attr-defined]  # the stubs leave it out


# Each is sent behind a good Hello, with a sequence number before it where that is possible.
HEAD = Batch(epoch=EPOCH, seq=1).SerializeToString()
BODIES = {
    "no protobuf": b"\xff" * 64,
    "bad UTF-8": HEAD + field(8, b"\xff\xfe"),
    "cut off": HEAD + b"\x2a\x7fabc",
    "0a 00 as events": HEAD + field(5, b"") * 300_000,
    "0a 00 deep inside": HEAD + field(5, field(25, field(9, b"") * 250_000)),
    "strings": HEAD + field(8, b"") * 300_000,
    "a megabyte and more": HEAD + field(8, b"x" * (1 << 20)),
    "more than gRPC takes": HEAD + field(8, b"x" * (3 << 20)),
    "a number without end": HEAD + b"\x80" * 70_000,
    "a long name": HEAD + field(8, b"") + field(8, b"x" * 2_000),
    "another epoch": Batch(epoch=EPOCH + 1, seq=1).SerializeToString(),
    "a gap": Batch(epoch=EPOCH, seq=99).SerializeToString(),
}


# To the other services of the same socket: what is as small on the wire and as large in memory.
OTHERS = {
    "orders of a refusal": (POLICIES, field(2, field(4, b"") * 500_000)),
    "fields of a policy": (POLICIES, field(1, b"".join(field(7, b"%06d" % n) for n in range(120_000)))),
    "no report": (POLICIES, b"\xff" * 64),
    "a service's name": (HEALTH, field(1, b"x" * 1_000_000)),
    "no health request": (HEALTH, b"\xff" * 64),
}


def send(address: str, bodies: Iterable[bytes], *, method: str = METHOD, **options: Any) -> grpc.StatusCode:
    """Send messages on one stream, wait for its end, and return its status."""
    channel_options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=channel_options) as channel:
        stream: Any = channel.stream_stream(method)
        call = stream(iter(bodies), timeout=120, **options)
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def raw_connections(path: str, count: int, data: bytes) -> Iterator[socket.socket]:
    """Open connections that send *data* and nothing more."""
    for _ in range(count):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        connection.sendall(data)
        yield connection
