#!/usr/bin/env bash
# nixl 1.5.1 (UCX 1.23): what is told of the transport by which a peer is read, and by whom.
#
# Seen: one agent reads from three others: two in processes with UCX_TLS=tcp,self,sm as its own, one with tcp,self only.
# UCX_PROTO_INFO=y prints a table "remote memory read by ucp_get*" for each *configuration* of endpoints (cfg#1: cma/memory,
# cfg#2: tcp/lo): two tables for three peers. They have the name of the reader and of no peer. The lines "cfg#1 rma_am(...)" of
# UCX_LOG_LEVEL=info name lanes, name no peer either, and do not say what a read takes. NIXL's telemetry files
# (NIXL_TELEMETRY_ENABLE) hold bytes and times of the agent. estimate_xfer_cost() is by peer (microseconds): it differs by a
# factor of hundreds between cma and tcp, and names nothing.
# Expected: a call that says it of a peer, as UCX's own ucp_ep_query() does of an endpoint (UCP_EP_ATTR_FIELD_TRANSPORTS).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet nixl==1.5.1 numpy==2.3.5

cat >"$work/read.py" <<'PYTHON'
import base64
import os
import subprocess
import sys
import time

import numpy
from nixl._api import nixl_agent, nixl_agent_config

SIZE = 4 << 20


def made(name):
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"], capture_telemetry=True))
    memory = numpy.ones(SIZE, numpy.uint8)
    agent.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    return agent, memory


def owner(name):
    agent, memory = made(name)
    print("OWNER", base64.b64encode(agent.get_agent_metadata()).decode(), memory.ctypes.data, flush=True)
    sys.stdin.read()


def started(name, transports):
    hidden = ("UCX_PROTO_INFO", "UCX_LOG_LEVEL", "NIXL_TELEMETRY_ENABLE")
    env = {key: value for key, value in os.environ.items() if key not in hidden} | {"UCX_TLS": transports}
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, __file__, name], env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    metadata, address = next(line for line in child.stdout if line.startswith("OWNER")).split()[1:]
    return child, base64.b64decode(metadata), int(address)


def reader():
    agent, memory = made("the-reader")
    here = agent.get_xfer_descs([(memory.ctypes.data, SIZE, 0)], "DRAM")
    for name, transports in (("owner-a", "tcp,self,sm"), ("owner-b", "tcp,self,sm"), ("owner-c", "tcp,self")):
        child, metadata, address = started(name, transports)
        agent.add_remote_agent(metadata)
        handle = agent.initialize_xfer("READ", here, agent.get_xfer_descs([(address, SIZE, 0)], "DRAM"), name)
        state, until = agent.transfer(handle), time.monotonic() + 30
        while state != "DONE":
            assert state == "PROC" and time.monotonic() < until, state
            time.sleep(0.001)
            state = agent.check_xfer_state(handle)
        cost = agent.estimate_xfer_cost(handle)[0]
        print("READ", agent.query_xfer_backend(handle), agent.get_backend_params("UCX"), cost, flush=True)
        agent.release_xfer_handle(handle)
        child.stdin.close()
        child.wait(30)


owner(sys.argv[1]) if len(sys.argv) > 1 else reader()
PYTHON

mkdir "$work/telemetry"
UCX_TLS=tcp,self,sm UCX_PROTO_INFO=y UCX_LOG_LEVEL=info NIXL_TELEMETRY_ENABLE=y NIXL_TELEMETRY_DIR="$work/telemetry" \
    timeout 300 "$work/venv/bin/python" "$work/read.py" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

grep -E '^READ|UCX  INFO .*cfg#' "$work/log"
grep -B1 -A5 'remote memory read by ucp_get' "$work/log"
tables=$(grep -c 'remote memory read by ucp_get' "$work/log")
reads=$(grep -c '^READ' "$work/log")
[ "$reads" = 3 ]
[ "$tables" = 2 ] || { echo "changed: $tables tables for 3 peers of 2 kinds"; exit 1; }
! grep -q 'owner-' "$work/log" || { echo "changed: the log names a peer"; exit 1; }
[ -n "$(ls "$work/telemetry")" ] || { echo "changed: no telemetry file"; exit 1; }
! grep -qaE 'tcp|cma|owner-' "$work/telemetry/the-reader" || { echo "changed: telemetry names a transport or a peer"; exit 1; }
grep '^READ' "$work/log" | sort -u -k4 | wc -l | grep -qx 2 || echo "estimates differ between peers of one kind"
