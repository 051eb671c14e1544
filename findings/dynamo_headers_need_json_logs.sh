#!/usr/bin/env bash
# ai-dynamo-runtime 1.6.1: whether an engine learns its caller's traceparent and X-Request-Id depends on the format of the logs.
#
# Seen: a request over Dynamo's HTTP service with both headers. By default Context.trace_headers() in the engine is None and
# Context.trace_id too. With DYN_LOGGING_JSONL=1, which names the console's format, both are there, and the id of the trace is
# the caller's. A trace breaks, and a request's id is lost, where logs are for people.
# Expected: what a request carries does not depend on how a log is written.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet ai-dynamo-runtime==1.6.1
mkdir "$work/discovery"

cat >"$work/ask.py" <<'PYTHON'
import asyncio
import json
import os
import socket
import sys
import time
import urllib.request

from dynamo.llm import HttpAsyncEngine, HttpService
from dynamo.runtime import DistributedRuntime

seen = []


async def generate(request, context):
    seen.append({"headers": context.trace_headers(), "trace_id": context.trace_id})
    choice = {"index": 0, "delta": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    yield {"id": "1", "created": 1, "model": "m", "object": "chat.completion.chunk", "choices": [choice]}


def ask(port):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    headers = {
        "Content-Type": "application/json",
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
        "X-Request-Id": "client-1",
    }
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", data=body, headers=headers)
    for _ in range(60):
        try:
            return urllib.request.urlopen(request, timeout=20).status
        except OSError:
            time.sleep(0.5)
    return 0


async def main():
    loop = asyncio.get_running_loop()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = HttpService(port)
    service.add_chat_completions_model("m", "sum", HttpAsyncEngine(generate, loop))
    service.enable_endpoint("chat", True)
    running = asyncio.ensure_future(service.run(DistributedRuntime(loop, "file", "tcp")))
    status = await asyncio.to_thread(ask, port)
    with open(sys.argv[1], "w") as file:
        json.dump({"status": status, "seen": seen[-1:]}, file)
    del running
    os._exit(0)


asyncio.run(main())
PYTHON

export DYN_FILE_KV="$work/discovery"
env -u DYN_LOGGING_JSONL -u OTEL_EXPORT_ENABLED timeout 120 "$work/venv/bin/python" "$work/ask.py" "$work/plain" >"$work/log" 2>&1
env -u OTEL_EXPORT_ENABLED DYN_LOGGING_JSONL=1 timeout 120 "$work/venv/bin/python" "$work/ask.py" "$work/jsonl" >"$work/log" 2>&1

python3 - "$work" <<'PYTHON'
import json
import pathlib
import sys

plain, jsonl = (json.loads(pathlib.Path(sys.argv[1], name).read_text()) for name in ("plain", "jsonl"))
print("default           ", plain)
print("DYN_LOGGING_JSONL=1", jsonl)
assert plain == {"status": 200, "seen": [{"headers": None, "trace_id": None}]}, plain
(seen,) = jsonl["seen"]
assert jsonl["status"] == 200 and seen["trace_id"] == "a" * 32, jsonl
assert seen["headers"]["x-request-id"] == "client-1", jsonl
assert seen["headers"]["traceparent"].split("-")[1] == "a" * 32, jsonl
PYTHON
echo "still so: a request's headers reach the engine only if logs are JSON"
