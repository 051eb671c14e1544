"""A process that makes a shared region with one slot of ones, prints its name, and waits to be killed."""

from __future__ import annotations

import pickle
import sys

from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import BEGIN, SharedRegion

if __name__ == "__main__":
    region = SharedRegion(1 << 20)
    region.begin(BEGIN)
    region.write(BEGIN + 64, b"\1" * 4096)
    region.seal(BEGIN, 7, 4096)
    sys.stdout.write(pickle.dumps(region.name).hex() + "\n")
    sys.stdout.flush()
    sys.stdin.read()
