"""The engine side of a process that does nothing: exporter and, as in EngineCore, policy client.

``python -m benchmarks.load.idle_engine ENDPOINT KIND PROCESS`` prints the native ids of the exporter's and of all other
Python threads but the main one once the agent has greeted it, and lives until standard input ends. KIND is ``loop`` or ``threads``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged, emit_closed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.instrumentation.runtime import Runtime

_NO_VERSION: Final = (1_000_000,)
_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class IdleEngine:
    """A process that is idle.

    Attributes:
        exporter: the native id of the exporter's thread.
        python: those of all Python threads but the main one.

    """

    pid: int
    exporter: int
    python: frozenset[int]

    def wake_ups(self) -> dict[int, int]:
        """Return how often each thread has gone to sleep since it began; the main one, which only waits, is left out."""
        found = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            number = int(task.name)
            if number != self.pid:
                status = (task / "status").read_text()
                found[number] = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        return found


@contextmanager
def running_idle_engine(endpoint: str, kind: str, process: str) -> Iterator[IdleEngine]:
    """Run one until the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.load.idle_engine", endpoint, kind, process],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            threads = json.loads(child.stdout.readline())
            yield IdleEngine(child.pid, threads["exporter"], frozenset(threads["python"]))
        finally:
            child.stdin.close()


def main(endpoint: str, kind: str, process: str) -> None:
    """Be one."""
    from penstock.instrumentation.core.settings import Settings
    from penstock.instrumentation.runtime import Runtime
    from penstock.instrumentation.transport import streams

    if kind == "threads":
        streams.SEPARATE_SINCE = _NO_VERSION  # type: ignore[misc,assignment]
    runtime = Runtime()
    runtime.configure(Settings(endpoint=endpoint))
    # Two engines of one name would take each other's place.
    runtime.identify(process=process, key=str(sum(kind.encode())), role="decode", model="tiny")
    runtime.start()
    emit_closed(runtime, "chatcmpl-0")
    wait_until(lambda: acknowledged(runtime), "the agent has acknowledged an entry")
    if process == "engine-core":
        runtime.start_policy(("kv_load_failure",))
        wait_until(lambda: _subscribed(runtime), "the agent has answered the subscription")
    ids = {thread.name: thread.native_id for thread in threading.enumerate()}
    exporter = ids["penstock-exporter"]
    python = [thread.native_id for thread in threading.enumerate() if thread is not threading.main_thread()]
    print(json.dumps({"exporter": exporter, "python": python}), flush=True)
    sys.stdin.read()
    runtime.stop()


def _subscribed(runtime: Runtime) -> bool:
    snapshot = Snapshot()
    runtime.snapshots.collect(snapshot)
    return snapshot.policy.connected


if __name__ == "__main__":
    main(*sys.argv[1:])
