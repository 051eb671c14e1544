"""The CPU time of real NIXL workers with Penstock and without it, by turns: ``python -m benchmarks.replay.workers ROUNDS``.

Two pairs of a prefill and a decode worker in this process. Of a transfer the steps in which something happens count, of the others
each for itself: how many there are is up to NIXL's own threads. Prints JSON: nanoseconds by measure and side, one a round.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.interleave import take_turns, without_gc
from benchmarks.replay.__main__ import WITH, WITHOUT

if TYPE_CHECKING:
    from tests.support.kv.nixl_pair import Engine

LOAD: Final = "load"
LEASE: Final = "lease"
IDLE: Final = "idle"
_IDLE_STEPS: Final = 50
_TRANSFERS: Final = 10


class Pair:
    """A prefill and a decode worker that have shaken hands."""

    def __init__(self, prefill: Engine, decode: Engine) -> None:
        """Let them shake hands."""
        from tests.support.kv.nixl_pair import connect

        self._prefill, self._decode, self._number = prefill, decode, 0
        connect(prefill, decode)

    def turn(self) -> dict[str, float]:
        """Move blocks for some requests; return the nanoseconds of each measure."""
        spent = {LOAD: 0.0, LEASE: 0.0, IDLE: 0.0}
        for _ in range(_TRANSFERS):
            name, self._number = f"cmpl-{self._number:08x}-0-0badcafe", self._number + 1
            spent[LEASE] += self._timed(self._prefill.lease, f"prefill-of-{name}")
            spent[LOAD] += self._load(name)
            spent[LEASE] += self._until(self._prefill, "finished_sending", f"prefill-of-{name}")
        for _ in range(_IDLE_STEPS):
            spent[IDLE] += self._timed(self._decode.step)
        counts = {LOAD: _TRANSFERS, LEASE: _TRANSFERS, IDLE: _IDLE_STEPS}
        return {name: value / counts[name] for name, value in spent.items()}

    def _load(self, name: str) -> float:
        """Read blocks; return the nanoseconds of the step that begins it, and of the one that ends it if that is another."""
        began = time.thread_time_ns()
        results, _, _ = self._decode.read(name, self._prefill)
        took = time.thread_time_ns() - began
        if name in results.finished_recving:
            return took
        return took + self._until(self._decode, "finished_recving", name)

    @staticmethod
    def _timed(call: Any, *arguments: Any) -> float:
        began = time.thread_time_ns()
        call(*arguments)
        return time.thread_time_ns() - began

    @staticmethod
    def _until(engine: Engine, kind: str, request_id: str) -> float:
        """Step until a request is reported; return the nanoseconds of that step."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            began = time.thread_time_ns()
            results, _, _ = engine.step()
            took = time.thread_time_ns() - began
            if request_id in getattr(results, kind):
                return took
            time.sleep(0.001)
        raise RuntimeError(f"{request_id} is not among {kind} after a minute")


def main(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the nanoseconds of each measure, with and without, of each round."""
    import pytest
    from penstock.instrumentation.runtime import runtime

    from tests.support.kv.nixl_pair import Engine, instrumented_engines, prepare

    runtime.active = True
    runtime.emitter.saturate()
    with ExitStack() as parts:
        directory = Path(parts.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        monkeypatch = parts.enter_context(pytest.MonkeyPatch.context())
        prepare(monkeypatch, directory)
        (directory / "model").mkdir()
        plain = []
        for role in ("kv_producer", "kv_consumer"):
            plain.append(Engine(directory / "model", role, monkeypatch))
            parts.callback(plain[-1].close)
        make = parts.enter_context(instrumented_engines(directory, monkeypatch))
        pairs = {
            WITHOUT: Pair(*plain),
            WITH: Pair(make("kv_producer"), make("kv_consumer")),
        }
        for pair in pairs.values():
            pair.turn()
        with without_gc():
            found = take_turns({side: pair.turn for side, pair in pairs.items()}, rounds)
        queues = (runtime.emitter.events, runtime.emitter.transfers, runtime.emitter.probes)
        for queue in queues:
            queue.clear()
    return {
        name: {side: [turn[name] for turn in turns] for side, turns in found.items()}
        for name in (LOAD, LEASE, IDLE)
    }


if __name__ == "__main__":
    # vLLM logs to stdout; the result has a descriptor of its own.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as result:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        json.dump(main(int(sys.argv[1])), result)
