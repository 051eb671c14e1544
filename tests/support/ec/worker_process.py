"""A worker process: loads what it is ordered, pickled orders and the region's name in hexadecimal a line, and prints what came.

python -m tests.support.ec.worker_process
"""

from __future__ import annotations

import pickle
import sys
import zlib
from typing import Any

from penstock.instrumentation.vllm.zmq_ec.consumer.worker import ConsumerWorker
from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import RegionError


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer each line with a line: the report in hexadecimal and each item's checksum, or the error."""
    loader = ConsumerWorker()
    say("ready")
    for line in sys.stdin:
        cache: dict[str, Any] = {}
        try:
            orders, region = pickle.loads(bytes.fromhex(line))
            loader.load(orders, region, cache, "cpu")
        except RegionError as error:
            say(f"error {error}")
            continue
        sums = ",".join(f"{item}={zlib.crc32(found.numpy())}" for item, found in sorted(cache.items()))
        say(f"{pickle.dumps(loader.report()).hex()} {sums}")
    loader.close()


if __name__ == "__main__":
    main()
