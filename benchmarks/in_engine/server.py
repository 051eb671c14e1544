"""vLLM's API server that switches Penstock on and off by the clock, in all of its processes at once.

``python -m benchmarks.in_engine.server`` takes the API server's arguments. Penstock stays on unless the directory ``BENCHMARK_SWITCH``
has a file ``go``; while it exists, Penstock is on in the blocks of :mod:`benchmarks.in_engine.schedule`. Each process appends a record of
each block to its own file in that directory.

*Off* means that none of Penstock's code runs: the scheduler has vLLM's own class, patches are undone, the two background threads
wait at a gate, and their clock stands still, so that batches and snapshots keep their rate in the time that Penstock is on. Memory
stays, and gRPC's idle threads (0.2 % of a core). The switch itself refills type caches, on both sides.

Installed at import, so that a spawned EngineCore, which imports its parent's main module, has it too.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.hooks import patch
from penstock.instrumentation.hooks.registry import registry
from penstock.instrumentation.policy import client
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.telemetry import exporter
from penstock.instrumentation.transport import background_thread
from penstock.instrumentation.vllm.requests.observer import SchedulerObserver
from penstock.instrumentation.vllm.scheduler.mixin import SchedulerMixin
from vllm.v1.engine.core import EngineCoreProc

from benchmarks.in_engine import schedule
from benchmarks.in_engine.schedule import Note
from tests.support.engine import forced_server  # noqa: F401  (production's defaults are forced at import)

if TYPE_CHECKING:
    from collections.abc import Callable

DIRECTORY: Final = "BENCHMARK_SWITCH"
GO: Final = "go"


class Gate:
    """Blocks the background threads while Penstock is off; their clock stands still while it is shut."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._shut_at = 0.0
        self._away = 0.0
        self.sleep = time.sleep
        self.time_ns = time.time_ns

    def monotonic(self) -> float:
        """Return the threads' clock in seconds."""
        return (self._shut_at or time.monotonic()) - self._away

    def shut(self) -> None:
        """Stop the clock, and every thread at its next turn."""
        self._open.clear()
        self._shut_at = time.monotonic()

    def open(self) -> None:
        """Start the clock and release the threads."""
        self._away += time.monotonic() - self._shut_at
        self._shut_at = 0.0
        self._open.set()

    def guard(self) -> None:
        """Install the gate and its clock in the background threads' modules."""
        turn: Callable[[Any], None] = background_thread.BackgroundThread._turn

        def waiting(each: Any) -> None:
            self._open.wait()
            turn(each)

        setattr(background_thread.BackgroundThread, "_turn", waiting)
        for module in (exporter, client, background_thread):
            module.time = self  # type: ignore[attr-defined]


class Switch:
    """Switches Penstock in one process, and records each block."""

    def __init__(self, process: str, gate: Gate) -> None:
        self._process = process
        self._gate = gate
        directory = Path(os.environ[DIRECTORY])
        self._go = directory / GO
        self._notes = (directory / f"{process}.jsonl").open("a", buffering=1)
        self._patched: list[tuple[Any, str, Any, Any]] = []
        self.on = True
        self.block = schedule.block_at(time.monotonic_ns())
        self.until = 0
        self.steps = self.tokens = self.told = 0
        self._begin()

    def turn(self, now: int) -> None:
        """Record the finished block, and switch for the next one."""
        self._notes.write(self._note().line())
        self.block = schedule.block_at(now)
        wanted = schedule.is_with(self.block) or not self._go.exists()
        if wanted is not self.on:
            self.on = wanted
            (self.switch_on if wanted else self.switch_off)()
        self._begin()

    def switch_off(self) -> None:
        """Undo the patches and stop the threads."""
        runtime.active = False
        self._gate.shut()
        hooks = registry._installed.values()
        self._patched = [each for hook in hooks for each in getattr(hook, "_patch", _NOTHING)._undo]
        for owner, name, before, _ in reversed(self._patched):
            if before is patch._ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def switch_on(self) -> None:
        """Redo the patches and release the threads."""
        for owner, name, _, ours in self._patched:
            setattr(owner, name, ours)
        self._gate.open()
        runtime.active = True

    def _begin(self) -> None:
        self.steps = self.tokens = 0
        self.until = schedule.end_of(self.block)
        self._began = time.monotonic_ns(), time.process_time_ns(), time.thread_time_ns()

    def _note(self) -> Note:
        wall, cpu, main = self._began
        return Note(
            self._process,
            self.block,
            self.on,
            wall_ns=time.monotonic_ns() - wall,
            cpu_ns=time.process_time_ns() - cpu,
            main_ns=time.thread_time_ns() - main,
            steps=self.steps,
            tokens=self.tokens,
            told=self.told,
        )


class _NoPatch:
    _undo: tuple[()] = ()


_NOTHING: Final = _NoPatch()


class _Empty:
    """Replaces the mixin: an object's class may only change to one of the same layout."""


class EngineSwitch(Switch):
    """Switches EngineCore between two steps of its main thread."""

    def __init__(self, core: Any, gate: Gate) -> None:
        self._scheduler = core.scheduler
        self._class = type(core.scheduler)
        own = next(each for each in self._class.__mro__ if not issubclass(each, SchedulerMixin))
        self._own = type(own.__name__, (_Empty, own), {})
        super().__init__("engine", gate)
        finished = SchedulerObserver.on_finished

        def count(observer: SchedulerObserver, request: Any) -> None:
            self.told += request.request_id in observer._records
            finished(observer, request)

        setattr(SchedulerObserver, "on_finished", count)

    def around(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap vLLM's step: check the clock before it, count its tokens after it."""

        def counted() -> Any:
            now = time.monotonic_ns()
            if now >= self.until:
                self.turn(now)
            outputs, executed = step()
            self.steps += 1
            for each in (outputs or {}).values():
                self.tokens += len(each.outputs)
            return outputs, executed

        return counted

    def switch_off(self) -> None:
        """Also remove the mixin from the scheduler."""
        super().switch_off()
        self._scheduler.__class__ = self._own

    def switch_on(self) -> None:
        """Reset the observer to the present requests, as if it had observed their arrival."""
        self._scheduler.__class__ = self._class
        super().switch_on()
        observer, live = self._scheduler._penstock.observer, self._scheduler.requests
        for table in (observer._records, observer.awaiting_token):
            for gone in [each for each in table if each not in live]:
                del table[gone]
        for request in list(live.values()):
            observer.on_request_added(request)


def _in_the_engine(gate: Gate) -> None:
    begin = EngineCoreProc.__init__

    def begin_switched(core: Any, *args: Any, **kwargs: Any) -> None:
        begin(core, *args, **kwargs)
        core.step_fn = EngineSwitch(core, gate).around(core.step_fn)

    EngineCoreProc.__init__ = begin_switched


def _in_the_api_process(gate: Gate) -> None:
    """Switch from a thread that sleeps until the end of each block."""
    mine = Switch("api", gate)

    def watch() -> None:
        while True:
            time.sleep(max(0, mine.until - time.monotonic_ns()) / 1e9)
            mine.turn(time.monotonic_ns())

    threading.Thread(target=watch, name="benchmark-switch", daemon=True).start()


_GATE: Final = Gate()
_GATE.guard()
_in_the_engine(_GATE)

if __name__ == "__main__":
    from demo.common import vllm_server

    _in_the_api_process(_GATE)
    vllm_server.main()
