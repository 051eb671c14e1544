"""vLLM's API server whose loads are two reads each, and whose NIXL agent has the faults that a file names.

``python -m tests.support.engine.faulty_nixl_server`` takes the API server's arguments. It is for a decode server of one rank
beside a prefill server of two: the reads of a load are 0 and 1, by the rank that they read from. The faults are in NIXL's own
class, below vLLM and Penstock. It runs at import, so that a spawned child, which imports its parent's main module, has them
too.
"""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any

from vllm.distributed.nixl_utils import NixlWrapper

from demo.common import vllm_server
from tests.support.kv.nixl_faults import present_faults

_READS = 2


def _break(agent: Any) -> None:
    """Give an agent's class the faults; a read that fails says so once it has ended, so nothing is written any more."""
    prepare, check, release = agent.make_prepped_xfer, agent.check_xfer_state, agent.release_xfer_handle
    prepared = itertools.count()
    reads: dict[int, int] = {}
    failing: set[int] = set()

    def faults() -> dict[str, int]:
        return present_faults(os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"])

    @functools.wraps(prepare)
    def make_prepped_xfer(self: Any, *args: Any, **kwargs: Any) -> Any:
        handle = prepare(self, *args, **kwargs)
        read = reads[id(handle)] = next(prepared) % _READS
        failing.discard(id(handle))
        if faults().get("fails") == read:
            failing.add(id(handle))
        return handle

    @functools.wraps(check)
    def check_xfer_state(self: Any, handle: Any) -> Any:
        state = check(self, handle)
        return "ERR" if state == "DONE" and id(handle) in failing else state

    @functools.wraps(release)
    def release_xfer_handle(self: Any, handle: Any) -> Any:
        if faults().get("refused", -1) == reads.get(id(handle)):
            raise RuntimeError("the handle is still in use")
        return release(self, handle)

    agent.make_prepped_xfer = make_prepped_xfer
    agent.check_xfer_state = check_xfer_state
    agent.release_xfer_handle = release_xfer_handle


_break(NixlWrapper)

if __name__ == "__main__":
    vllm_server.main()
