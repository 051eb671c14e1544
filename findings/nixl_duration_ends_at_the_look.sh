#!/usr/bin/env bash
# nixl 1.5.1 (Python, UCX backend over TCP, progress thread on as by default): a transfer's xferDuration ends when somebody asks.
#
# Seen: 4 MiB are in the reader's memory within 0.2 s, and the reader asks for the state a second later. get_xfer_telemetry
# then says an xferDuration (microseconds) of more than a second: the time from posting to the first check that saw the end.
# Expected: the time that the transfer took. With a progress thread the library could know it, and the name says it. A scheduler
# that looks once a step sees the length of its step in every short transfer.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet nixl==1.5.1 numpy==2.3.5

UCX_TLS=tcp "$work/venv/bin/python" - <<'PYTHON'
import time
from importlib.metadata import version

import numpy
from nixl._api import nixl_agent, nixl_agent_config

SIZE, LATER = 4 << 20, 1.0
config = nixl_agent_config(backends=["UCX"], capture_telemetry=True)
reader, owner = nixl_agent("reader", config), nixl_agent("owner", config)
source, target = numpy.ones(SIZE, numpy.uint8), numpy.zeros(SIZE, numpy.uint8)


def registered(agent, memory):
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    return agent.get_xfer_descs([(memory.ctypes.data, memory.nbytes, 0)], "DRAM")


there, here = registered(owner, source), registered(reader, target)
reader.add_remote_agent(owner.get_agent_metadata())


def read(later):
    """Read once and ask *later* seconds after the bytes are here; return when they were, and the duration told, seconds."""
    target[:] = 0
    handle = reader.initialize_xfer("READ", here, there, "owner")
    began = time.monotonic()
    state = reader.transfer(handle)
    while not target.all():
        assert time.monotonic() - began < 30, "the bytes do not come"
        time.sleep(0.002)
    arrived = time.monotonic() - began
    time.sleep(later)
    while state != "DONE":
        assert state == "PROC" and time.monotonic() - began < 60, state
        state = reader.check_xfer_state(handle)
    told = reader.get_xfer_telemetry(handle).xferDuration / 1e6
    reader.release_xfer_handle(handle)
    return arrived, told


read(0)  # The first one connects.
for later in (0.0, LATER):
    arrived, told = read(later)
    print(f"nixl {version('nixl')}: bytes here after {arrived:.3f} s, asked {later:g} s later, xferDuration {told:.3f} s")
    assert told >= later, "changed: the duration does not hold the wait any more"
assert told > arrived + LATER / 2, "changed: the duration is that of the transfer"
PYTHON
