#!/usr/bin/env bash
# vllm-router 0.1.17: with --vllm-pd-disaggregation a server that /remove_worker takes out cannot be added again.
#
# Seen: two prefill servers and a decode server, each used. POST /remove_worker?url= of a prefill server answers 200, and requests
# go to the other one. POST /add_worker?url= of it answers 400, "PD router requires specific add_prefill_server or
# add_decode_server methods", and POST /workers with {"url": …, "worker_type": "prefill"} the same. The router goes on without it.
# Without --vllm-pd-disaggregation /add_worker answers 200, and the server is used again.
# Expected: what one request takes out another puts back; POST /workers says which kind of server it is.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet vllm-router==0.1.17

cat >"$work/ask.py" <<'PYTHON'
import http.server
import json
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from importlib.metadata import version

work = pathlib.Path(sys.argv[1])
ROUTER = str(work / "venv" / "bin" / "vllm-router")
asked = Counter()


class Handler(http.server.BaseHTTPRequestHandler):
    """A server of a model: well, and with an answer to each request."""

    def answer(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        asked[self.server.server_port] += 1
        choice = {"index": 0, "text": "x", "finish_reason": "stop", "logprobs": None}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        kv = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [1], "remote_host": "127.0.0.1", "remote_port": 1}
        self.answer(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "created": 1,
                "model": "tiny",
                "choices": [choice],
                "usage": usage,
                "kv_transfer_params": kv,
            }
        )

    def log_message(self, *_):
        pass


def served():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def call(url, body=None, method="POST"):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def used(router, port):
    """Return how many of ten requests the server at *port* has a part in."""
    before = asked[port]
    for _ in range(10):
        status, text = call(f"{router}/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1})
        assert status == 200, (status, text)
    return asked[port] - before


def wait(look, what):
    for _ in range(120):
        try:
            if look():
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"changed, or the router does not start: {what}")


def story(name, port, *options):
    """Take the server at *port* out of a router with these *options* and add it; return what was seen."""
    at = free()
    router, log = f"http://127.0.0.1:{at}", (work / f"{name}.log").open("w")
    command = [ROUTER, "--host", "127.0.0.1", "--port", str(at), "--prometheus-port", str(free()), "--policy", "round_robin"]
    process = subprocess.Popen([*command, *options], stdout=log, stderr=subprocess.STDOUT)
    try:
        wait(lambda: call(f"{router}/health", method="GET")[0] == 200, f"{name} is not ready")
        wait(lambda: used(router, port), f"{name} does not use the server")
        place = f"url=http://127.0.0.1:{port}"
        removed = call(f"{router}/remove_worker?{place}")[0]
        wait(lambda: not used(router, port), f"{name} goes on using the server")
        added = call(f"{router}/add_worker?{place}")
        typed = call(f"{router}/workers", {"url": f"http://127.0.0.1:{port}", "worker_type": "prefill"})
        seen = {"remove_worker": removed, "add_worker": added[0], "workers": typed[0], "used then": used(router, port) > 0}
        print(f"vllm-router {version('vllm-router')} {name}: {seen}\n  {added[1]}\n  {typed[1]}", flush=True)
        return seen
    finally:
        process.terminate()
        process.wait(30)


ports = served(), served(), served()
one, two, three = (f"http://127.0.0.1:{port}" for port in ports)
alike = story("alike", ports[0], "--worker-urls", one, two)
apart = story("prefill and decode", ports[0], "--vllm-pd-disaggregation", "--prefill", one, "--prefill", two, "--decode", three)
assert alike["add_worker"] == 200 and alike["used then"], "changed"
assert apart == {"remove_worker": 200, "add_worker": 400, "workers": 400, "used then": False}, "changed"
PYTHON
timeout 300 "$work/venv/bin/python" "$work/ask.py" "$work"
echo "still so: with prefill and decode apart, a server that was removed is not taken back"
