"""vLLM's API server that switches Penstock on and off by the clock, in all of its processes at once.

``python -m benchmarks.in_engine.server`` takes the API server's arguments. Nothing happens, and Penstock is on, unless the directory
``BENCHMARK_SWITCH`` has a file ``go``; while it is there, Penstock is on in every block that :mod:`benchmarks.in_engine.schedule` says. Each process
notes what it did in each block in a file of its own in that directory.

*Off* means that none of Penstock's code runs: the scheduler gets vLLM's own class back, what is patched gets what was there before, the two
services sleep at a gate, and their clock stands still, so that a batch and a snapshot come as often by the time that Penstock is on as they otherwise
do. What stays is memory, and what gRPC's threads do while nothing is sent (0.2 % of a core). What is on pays for the switch itself: caches of types are filled anew, on both sides.

It runs at import, so that a spawned EngineCore, which imports its parent's main module, has it too.
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
    """Where the services wait while Penstock is off, and the clock that they live by: it stands while the gate is shut."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._shut_at = 0.0
        self._away = 0.0
        self.sleep = time.sleep
        self.time_ns = time.time_ns

    def monotonic(self) -> float:
        """Return the seconds that the services have lived."""
        return (self._shut_at or time.monotonic()) - self._away

    def shut(self) -> None:
        """Stop the clock, and every service at its next turn."""
        self._open.clear()
        self._shut_at = time.monotonic()

    def open(self) -> None:
        """Let all go on."""
        self._away += time.monotonic() - self._shut_at
        self._shut_at = 0.0
        self._open.set()

    def guard(self) -> None:
        """Put the gate into the services, which read the clock by the module's name."""
        turn: Callable[[Any], None] = background_thread.BackgroundThread._turn

        def waiting(each: Any) -> None:
            self._open.wait()
            turn(each)

        setattr(background_thread.BackgroundThread, "_turn", waiting)
        for module in (exporter, client, background_thread):
            module.time = self  # type: ignore[attr-defined]


class Switch:
    """Penstock's switch in one process, and the notes of it."""

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
        """Note the block that has ended, and be as the one that begins says."""
        self._notes.write(self._note().line())
        self.block = schedule.block_at(now)
        wanted = schedule.is_with(self.block) or not self._go.exists()
        if wanted is not self.on:
            self.on = wanted
            (self.switch_on if wanted else self.switch_off)()
        self._begin()

    def switch_off(self) -> None:
        """Take out what is patched and stop what runs."""
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
        """Put all of that back."""
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
    """Stands where the mixin does: an object's class can be changed only to one of the same layout."""


class EngineSwitch(Switch):
    """EngineCore's, which switches between two steps of its main thread."""

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
        """Return vLLM's step with a look at the clock before it, and a count of its tokens behind it."""

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
        """Take the mixin from the scheduler as well."""
        super().switch_off()
        self._scheduler.__class__ = self._own

    def switch_on(self) -> None:
        """Let the observer know the requests that are there now, and no other, as if it had seen them come."""
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
    """Switch by a thread, which sleeps from one block's end to the next."""
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
