"""What a step of vLLM's scheduler costs with Penstock's mixin and without it: ``make bench ONLY=step``.

vLLM's own ``AsyncScheduler`` in this process, without an engine: the model's answers are made up and not in the time. Two schedulers with the same
requests take turns; the time is the thread's CPU time of ``schedule`` and ``update_from_output``, with the garbage collector off.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.interleave import Run, take_turns, without_gc
from benchmarks.harness.results import Row, Section, Spread, against

if TYPE_CHECKING:
    from collections.abc import Callable

AREA: Final = "step"
TITLE: Final = "A step of the scheduler"
MEANING: Final = (
    "What a scheduler's step takes longer with Penstock's mixin, where nothing happens and where remote "
    "loads wait. A step of a real model takes ten milliseconds or more."
)
_NOTES: Final = (
    (
        "vLLM's `AsyncScheduler`, with and without Penstock's mixin by turns in one process. *Nothing happens*: eight requests decode, no connector. *Remote loads wait*: "
        "`NixlConnector`; four requests decode and four wait for their KV, and the workers have nothing to report. *Added*: with less without, round by round. "
        "*Mixin alone*: the same hook points over a class that does nothing, with the step's own objects: what the real scheduler's noise hides. "
        "Nothing is exported meanwhile, times are the thread's CPU time, and the garbage collector is off."
    ),
)
_STEPS: Final = 40
_IDLE_STEPS: Final = 2000
_ROUNDS, _QUICK_ROUNDS = 300, 40
_TOKENS: Final = 340
"""Tokens that each request may get before it is replaced; its blocks and those of seven others fit in the cache."""
_NS_PER_US: Final = 1e3
_WITH, _WITHOUT = "with Penstock", "without Penstock"
_NIXL: Final = {
    "kv_connector": "NixlConnector",
    "kv_buffer_device": "cpu",
    "kv_role": "kv_consumer",
}


def measure(run: Run) -> Section:
    """Measure the area."""
    from penstock.instrumentation.runtime import runtime
    from penstock.instrumentation.vllm.kv.hook import KvConnectorHook

    # On, without settings: there is no agent to talk to, and no thread of Penstock's.
    runtime.active = True
    rows: list[Row] = []
    hook = KvConnectorHook()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        for group, waiting, transfer in (("Nothing happens", 0, {}), ("Remote loads wait", 4, _NIXL)):
            run.say(group)
            plain = _scheduler(Path(directory), transfer)
            hook.install()
            ours = _scheduler(Path(directory), transfer, instrumented=True)
            rows += _rows(
                run, "step", group, {_WITH: _steps(ours, waiting), _WITHOUT: _steps(plain, waiting)}
            )
            rows += _rows(run, "mixin alone", group, _alone(ours))
            hook.uninstall()
    return Section(AREA, TITLE, _NOTES, rows)


def _rows(run: Run, what: str, group: str, subjects: dict[str, Callable[[], float]]) -> list[Row]:
    for once in subjects.values():
        once()
    with without_gc():
        found = take_turns(subjects, _QUICK_ROUNDS if run.quick else _ROUNDS, run.say)
    added = [ours - theirs for ours, theirs in zip(found[_WITH], found[_WITHOUT], strict=True)]
    return [
        against(what, "µs", found[_WITH], _WITHOUT, found[_WITHOUT], group=group),
        Row(f"{what}, added", "µs", Spread.of(added), group),
    ]


def _scheduler(directory: Path, transfer: dict[str, Any], *, instrumented: bool = False) -> Any:
    """Return a scheduler as EngineCore builds it."""
    from penstock.instrumentation.vllm.scheduler.hook import create_scheduler

    from tests.support.engine import schedulers

    config = schedulers.vllm_config(directory, **transfer)
    config.scheduler_config.async_scheduling = True
    return schedulers.build(create_scheduler if instrumented else schedulers.SCHEDULERS["async"], config)


def _steps(scheduler: Any, waiting: int) -> Callable[[], float]:
    """Return a function that takes steps and gives the microseconds of one; *waiting* of eight requests wait for their KV."""
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import RequestStatus

    from tests.support.engine import schedulers

    numbers, decoding, left = count(), 8 - waiting, 0
    workers = KVConnectorOutput() if waiting else None

    def refill() -> None:
        scheduler.finish_requests(
            [each.request_id for each in scheduler.running], RequestStatus.FINISHED_ABORTED
        )
        for _ in range(decoding):
            number = next(numbers)
            scheduler.add_request(
                schedulers.request(
                    f"cmpl-{number}-0-0badcafe", tokens=8, first=number % 400, max_tokens=_TOKENS + 20
                )
            )
        for _ in range(3):
            _step(scheduler, workers)

    for number in range(waiting):
        scheduler.add_request(
            schedulers.request(f"cmpl-w{number}-0-0badcafe", first=401 + number, params=schedulers.REMOTE)
        )

    def once() -> float:
        nonlocal left
        if left < _STEPS:
            refill()
            left = _TOKENS
        left -= _STEPS
        spent = sum(_step(scheduler, workers) for _ in range(_STEPS))
        if len(scheduler.running) != decoding:
            raise RuntimeError(f"{len(scheduler.running)} requests run, {decoding} should")
        return spent / _STEPS / _NS_PER_US

    return once


class _Idle:
    """A scheduler that has nothing to do: what it asks about its waiting requests it asks, and no more."""

    idle_output: Any
    idle_waiting: tuple[Any, ...]

    def schedule(self) -> Any:
        for each in self.idle_waiting:
            self._handle_blocked_waiting_request(each)
        return self.idle_output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:  # noqa: ARG002  (vLLM's signature)
        return {}

    def _handle_blocked_waiting_request(self, request: Any) -> bool:  # noqa: ARG002  (vLLM's signature)
        return False


def _alone(scheduler: Any) -> dict[str, Callable[[], float]]:
    """Return the mixin of *scheduler* over :class:`_Idle`, with and without."""
    from penstock.instrumentation.vllm.scheduler.mixin import SchedulerMixin
    from vllm.v1.outputs import KVConnectorOutput

    output = scheduler.schedule()
    waiting = tuple(
        each for each in scheduler.requests.values() if each.status.name == "WAITING_FOR_REMOTE_KVS"
    )
    answer = SimpleNamespace(
        kv_connector_output=KVConnectorOutput() if waiting else None, ec_connector_output=None
    )
    subjects: dict[str, Callable[[], float]] = {}
    for name, kind in ((_WITH, type("_Hooked", (SchedulerMixin, _Idle), {})), (_WITHOUT, _Idle)):
        idle: Any = object.__new__(kind)
        vars(idle).update(vars(scheduler), idle_output=output, idle_waiting=waiting)

        def once(idle: Any) -> float:
            began = time.thread_time_ns()
            for _ in range(_IDLE_STEPS):
                idle.schedule()
                idle.update_from_output(output, answer)
            return (time.thread_time_ns() - began) / _IDLE_STEPS / _NS_PER_US

        subjects[name] = partial(once, idle)
    return subjects


def _step(scheduler: Any, workers: Any) -> int:
    """Take one step in which every running request gets a token; return the nanoseconds of the scheduler's part."""
    from vllm.v1.outputs import ModelRunnerOutput

    began = time.thread_time_ns()
    scheduled = scheduler.schedule()
    spent = time.thread_time_ns() - began
    ids = list(scheduled.num_scheduled_tokens)
    output = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={each: index for index, each in enumerate(ids)},
        sampled_token_ids=[[7] for _ in ids],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=workers,
    )
    began = time.thread_time_ns()
    scheduler.update_from_output(scheduled, output)
    return spent + time.thread_time_ns() - began
