#!/usr/bin/env bash
# grpcio 1.85.3: an answer that its response deserializer refuses is an error in grpc, and a result in grpc.aio.
#
# Seen: with grpc.insecure_channel the call ends with INTERNAL "Exception deserializing response!". With
# grpc.aio.insecure_channel the same call returns None with status OK, and a stream yields None for that message and goes on;
# the exception is only logged. A caller that does not look for None takes a peer's unreadable answer for one.
# Expected: the same error from both faces of the library.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet grpcio==1.85.3

"$work/venv/bin/python" - <<'PYTHON'
import asyncio
import json
import logging
from concurrent import futures

import grpc

logging.disable(logging.CRITICAL)
ROWS = b'{"row": 1}', b"no JSON", b'{"row": 3}'
server = grpc.server(futures.ThreadPoolExecutor(2))
server.add_generic_rpc_handlers(
    [
        grpc.method_handlers_generic_handler(
            "demo",
            {
                "One": grpc.unary_unary_rpc_method_handler(lambda request, context: ROWS[1]),
                "Many": grpc.unary_stream_rpc_method_handler(lambda request, context: iter(ROWS)),
            },
        )
    ]
)
port = server.add_insecure_port("127.0.0.1:0")
server.start()


def blocking():
    said = []
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            said.append(channel.unary_unary("/demo/One", response_deserializer=json.loads)(b"", timeout=30))
        except grpc.RpcError as error:
            said.append(error.code().name)
        try:
            said.extend(channel.unary_stream("/demo/Many", response_deserializer=json.loads)(b"", timeout=30))
        except grpc.RpcError as error:
            said.append(error.code().name)
    return said


async def asynchronous():
    said = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        one = channel.unary_unary("/demo/One", response_deserializer=json.loads)(b"", timeout=30)
        said += [await one, (await one.code()).name]
        many = channel.unary_stream("/demo/Many", response_deserializer=json.loads)(b"", timeout=30)
        async for row in many:
            said.append(row)
        said.append((await many.code()).name)
    return said


seen = {"grpc": blocking(), "grpc.aio": asyncio.run(asynchronous())}
server.stop(None).wait()
print(grpc.__version__, seen)
assert seen["grpc"] == ["INTERNAL", {"row": 1}, "INTERNAL"], seen
assert seen["grpc.aio"] == [None, "OK", {"row": 1}, None, {"row": 3}, "OK"], seen
PYTHON
echo "still so: grpc.aio returns None where grpc raises"
