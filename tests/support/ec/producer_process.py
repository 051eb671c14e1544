"""A producer process: serves one item, says so, and stops answering after a number of chunks, until it is resumed.

python -m tests.support.ec.producer_process PORT ROWS CHUNKS
"""

from __future__ import annotations

import sys
import threading

from penstock.instrumentation.vllm.zmq_ec.producer import worker
from penstock.instrumentation.vllm.zmq_ec.producer.responder import Reply, Responder

from tests.support.ec.tensors import MODEL, tensor


class Halting(Responder):
    """Says ``mid`` before the chunk that it sends only after a line on standard input."""

    left = int(sys.argv[3])

    def answer(self, frame: bytes) -> Reply:
        """Answer, or wait."""
        reply = super().answer(frame)
        if reply.item:
            Halting.left -= 1
            if Halting.left == 0:
                sys.stdout.write("mid\n")
                sys.stdout.flush()
                sys.stdin.readline()
        return reply


def main() -> None:
    """Serve until it is killed."""
    worker.Responder = Halting  # type: ignore[attr-defined]  # replaced where it is used
    made = worker.ProducerWorker("127.0.0.1", int(sys.argv[1]), MODEL, 100 << 20)
    made.save("a", tensor(int(sys.argv[2])))
    sys.stdout.write(made.server.address + "\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
