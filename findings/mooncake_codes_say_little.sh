#!/usr/bin/env bash
# mooncake-transfer-engine-non-cuda 0.3.13 (Python, TCP, peer-to-peer handshake): what the return codes of its transfers do not say.
#
# Seen: a read into memory that was never registered returns 0. A remote address that is not registered, a batch of which one half
# has been delivered, and a peer that is not there all return -1. A read from a stopped process blocks for 30 s, then returns -1.
# Expected: codes that tell these apart, or a text; a caller that gets -1 has to take the whole batch for lost.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet mooncake-transfer-engine-non-cuda==0.3.13 nvidia-cuda-runtime-cu12==12.8.90 numpy==2.3.5
# Mooncake links against RDMA's libraries even where it moves over TCP; NIXL's wheel has them, under names of its own.
"$work/venv/bin/pip" install --quiet --no-deps nixl-cu12==1.5.1
packages=$(echo "$work"/venv/lib/python3*/site-packages)
mkdir "$work/lib"
for name in libibverbs libmlx5; do
    cp "$packages/nixl_cu12.libs/$name"-*.so.* "$work/lib/$name.so.1"
done
cp "$packages"/nixl_cu12.libs/libnl-3-* "$packages"/nixl_cu12.libs/libnl-route-3-* "$work/lib/"
export LD_LIBRARY_PATH=$work/lib:$packages/nvidia/cuda_runtime/lib

cat >"$work/codes.py" <<'PYTHON'
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import numpy
from mooncake.engine import TransferEngine

SIZE, HALF = 1 << 20, 1 << 19


def engine():
    """Return an engine of its own."""
    made = TransferEngine()
    assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    return made


def memory(value, owner=None):
    """Return an array, registered with its owner if there is one."""
    array = numpy.full(SIZE, value, numpy.uint8)
    assert owner is None or owner.register_memory(array.ctypes.data, array.nbytes) == 0
    return array


if sys.argv[1:] == ["peer"]:
    own = engine()
    kept = memory(1, own)
    print("here", own.get_rpc_port(), kept.ctypes.data, flush=True)
    sys.stdin.read()
    sys.exit()

process = subprocess.Popen([sys.executable, __file__, "peer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
port, there = next(map(int, line.split()[1:]) for line in process.stdout if line.startswith("here "))
own, peer = engine(), f"127.0.0.1:{port}"
print(f"mooncake-transfer-engine {version('mooncake-transfer-engine-non-cuda')}")


def read(what, expected, call):
    """Call, print and compare; return how long it took."""
    began = time.monotonic()
    code = call()
    took = time.monotonic() - began
    print(f"{what}: {code} after {took:.1f} s", flush=True)
    assert code == expected, "changed"
    return took


target, loose, half = memory(0, own), memory(0), memory(0, own)
read("a good read", 0, lambda: own.transfer_sync_read(peer, target.ctypes.data, there, SIZE))
read("into memory that is not registered", 0, lambda: own.transfer_sync_read(peer, loose.ctypes.data, there, SIZE))
assert loose.all(), "changed: nothing has arrived"
beside = there + (SIZE << 4)
read("a remote address that is not registered", -1, lambda: own.transfer_sync_read(peer, target.ctypes.data, beside, SIZE))
to, sources = [half.ctypes.data, half.ctypes.data + HALF], [there, beside]
read("a batch whose second half is not registered", -1, lambda: own.batch_transfer_sync_read(peer, to, sources, [HALF, HALF]))
time.sleep(1)
assert half[:HALF].all(), "changed: the first half has not arrived"
read("a peer that is not there", -1, lambda: own.transfer_sync_read("127.0.0.1:1", target.ctypes.data, there, SIZE))
process.send_signal(signal.SIGSTOP)
took = read("a peer that is stopped", -1, lambda: own.transfer_sync_read(peer, target.ctypes.data, there, SIZE))
assert took > 20, "changed: a stopped peer costs less"
process.kill()
PYTHON
PYTHONUNBUFFERED=1 timeout 300 "$work/venv/bin/python" "$work/codes.py" 2> >(grep -v '^[IWE][0-9]\|^WARNING' >&2)
