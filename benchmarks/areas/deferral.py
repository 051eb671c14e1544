"""What it costs, and what it brings, that a request waits for its encoder output beside the others: ``make bench ONLY=deferral``.

vLLM's own ``AsyncScheduler`` in this process, without an engine, with a connector whose items arrive a time after the first question
(``load/timed_ec.py``). The model's answers are made up; its step is a sleep.
"""

from __future__ import annotations

import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.interleave import Run, take_turns, without_gc
from benchmarks.harness.results import Row, Section, Spread, against

if TYPE_CHECKING:
    from collections.abc import Callable

AREA: Final = "deferral"
TITLE: Final = "Requests that wait for an encoder output"
MEANING: Final = (
    "A request that waits for its encoder output must not hold up the others, and asking after it must be "
    "cheap: a policy's deadline adds next to nothing to a poll, and look-ups that do not block give the "
    "step back to the requests that can run."
)
_NOTES: Final = (
    (
        "vLLM's `AsyncScheduler` with an EC connector whose items arrive a time after the first question. *A poll*: 64 requests wait and nothing runs; the CPU time "
        "of `schedule()` by request, vLLM's own work included (its prefix cache is asked first). *With a deadline*: `maxTransferWait` is in force and far away. "
        "*Throughput*: four requests decode, eight with a picture arrive one after the other; the model's step is a sleep of 10 ms. Look-ups that do not block (vLLM "
        "#41627) start the transfer and pass the request over; those that block keep the step, and all requests in it, until the item is there. How much that is "
        "follows from the two times; that the ratio to the same scheduler without Penstock is 1 is what Penstock has to show."
    ),
)
_WAITING: Final = 64
_POLL_STEPS: Final = 20
_ROUNDS, _QUICK_ROUNDS = 200, 30
_PLAYS, _QUICK_PLAYS = 25, 5
_FOREVER: Final = 1e9
_TRANSITS: Final = (0.02, 0.05, 0.1)
"""Seconds from the first question for an item to its arrival."""
_MODEL: Final = 0.01
"""Seconds of a step in which something runs."""
_IDLE: Final = 0.0005
"""Seconds that vLLM's engine loop yields where nothing runs."""
_TEXTS, _TEXT_TOKENS = 4, 48
_PICTURES, _PICTURE_TOKENS = 8, 2
_APART: Final = 4
"""Steps between two requests with a picture."""
_ROWS: Final = 40
"""Embeddings of a picture."""
_NS_PER_US: Final = 1e3
_WITHOUT, _BLOCKS = "without Penstock", "look-ups that block"


def measure(run: Run) -> Section:
    """Measure the area."""
    from penstock.instrumentation.runtime import runtime
    from penstock.instrumentation.vllm.ec.hook import EcConnectorHook

    from tests.support.engine.recorder import policy

    # On, without settings: there is no agent to talk to, and no thread of Penstock's.
    runtime.active = True
    rows: list[Row] = []
    hook = EcConnectorHook()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:

        def build(seconds: float, *, instrumented: bool = False, blocks: bool = False) -> Any:
            return _scheduler(Path(directory), seconds, instrumented=instrumented, blocks=blocks)

        run.say("A poll")
        plain = build(_FOREVER)
        hook.install()
        ours = build(_FOREVER, instrumented=True)
        subjects = {"ours": _polls(ours), _WITHOUT: _polls(plain)}
        rows += _poll_rows(run, "A poll", subjects)
        runtime.policy.swap(policy(deferral=_deadline()), 1.0)
        rows += _poll_rows(run, "A poll, with a deadline", subjects)
        runtime.policy.swap(policy(), 1.0)
        hook.uninstall()
        for seconds in _TRANSITS[1:2] if run.quick else _TRANSITS:
            run.say(f"{seconds * 1e3:g} ms in transit")
            plain, blocking = build(seconds), build(seconds, blocks=True)
            hook.install()
            ours = build(seconds, instrumented=True)
            plays = {"ours": _play(ours), _WITHOUT: _play(plain), _BLOCKS: _play(blocking)}
            rows += _throughput_rows(run, f"Throughput, {seconds * 1e3:g} ms in transit", plays)
            hook.uninstall()
    return Section(AREA, TITLE, _NOTES, rows)


def _deadline() -> Any:
    """Return a deadline that no request here reaches."""
    from penstock.instrumentation.resilience import Deferral

    return Deferral(max_transfer_wait=_FOREVER, max_start_wait=_FOREVER)


def _poll_rows(run: Run, group: str, subjects: dict[str, Callable[[], float]]) -> list[Row]:
    for once in subjects.values():
        once()
    with without_gc():
        found = take_turns(subjects, _QUICK_ROUNDS if run.quick else _ROUNDS, run.say)
    added = [ours - theirs for ours, theirs in zip(found["ours"], found[_WITHOUT], strict=True)]
    return [
        against("by request that waits", "µs", found["ours"], _WITHOUT, found[_WITHOUT], group=group),
        Row("by request that waits, added", "µs", Spread.of(added), group),
    ]


def _throughput_rows(run: Run, group: str, plays: dict[str, Callable[[], tuple[float, float]]]) -> list[Row]:
    for once in plays.values():
        once()
    with without_gc():
        found = take_turns(plays, _QUICK_PLAYS if run.quick else _PLAYS, run.say)
    tokens, longest = ({name: [play[index] for play in found[name]] for name in found} for index in (0, 1))
    rows = [
        against(
            "tokens of all requests", "/s", tokens["ours"], peer, tokens[peer], group=group, better="higher"
        )
        for peer in (_BLOCKS, _WITHOUT)
    ]
    # A machine that is busy for a moment makes one step longer: no ratio to hold a change to.
    if not run.quick:
        rows.insert(
            1,
            against(
                "longest time between two steps",
                "ms",
                longest["ours"],
                _BLOCKS,
                longest[_BLOCKS],
                group=group,
            ),
        )
    return rows


def _scheduler(directory: Path, seconds: float, *, instrumented: bool, blocks: bool) -> Any:
    """Return a scheduler as EngineCore builds it; items take *seconds*."""
    from penstock.instrumentation.vllm.scheduler.hook import create_scheduler
    from vllm.config import ECTransferConfig

    from benchmarks.load.timed_ec import MODULE
    from tests.support.engine import schedulers

    config = schedulers.vllm_config(directory)
    config.ec_transfer_config = ECTransferConfig(
        ec_connector="TimedEcConnector",
        ec_role="ec_consumer",
        ec_connector_module_path=MODULE,
        ec_connector_extra_config={"seconds": seconds, "blocks": blocks},
    )
    config.scheduler_config.async_scheduling = True
    made = schedulers.build(create_scheduler if instrumented else schedulers.SCHEDULERS["async"], config)
    schedulers.make_room_for_items(made)
    return made


def _picture(request_id: str) -> Any:
    """Return a request with a picture of its own."""
    from tests.support.ec.fake_ec import image_request

    return image_request(
        request_id, {10: (f"item-of-{request_id}", _ROWS)}, tokens=64, max_tokens=_PICTURE_TOKENS
    )


def _polls(scheduler: Any) -> Callable[[], float]:
    """Return a function that lets *scheduler* poll, and gives the microseconds for one request."""
    for number in range(_WAITING):
        scheduler.add_request(_picture(f"cmpl-w{number}-0-0badcafe"))

    def once() -> float:
        before: int = scheduler.ec_connector.polls
        spent = 0
        for _ in range(_POLL_STEPS):
            began = time.thread_time_ns()
            scheduled = scheduler.schedule()
            spent += time.thread_time_ns() - began
            scheduler.update_from_output(scheduled, _answer(scheduled))
        polls: int = scheduler.ec_connector.polls - before
        if polls != _POLL_STEPS * _WAITING:
            raise RuntimeError(f"{polls} polls in {_POLL_STEPS} steps with {_WAITING} waiting requests")
        return spent / polls / _NS_PER_US

    return once


def _play(scheduler: Any) -> Callable[[], tuple[float, float]]:
    """Return a function that plays the traffic once, and gives tokens by second and the longest milliseconds between two steps."""
    from tests.support.engine import schedulers

    numbers = count()

    def once() -> tuple[float, float]:
        for _ in range(_TEXTS):
            number = next(numbers)
            scheduler.add_request(
                schedulers.request(
                    f"cmpl-t{number}-0-0badcafe", tokens=16, first=number % 400, max_tokens=_TEXT_TOKENS
                )
            )
        tokens = steps = arrived = 0
        began = last = time.perf_counter()
        longest = 0.0
        while scheduler.requests or arrived < _PICTURES:
            if arrived < _PICTURES and steps >= arrived * _APART:
                scheduler.add_request(_picture(f"cmpl-p{next(numbers)}-0-0badcafe"))
                arrived += 1
            scheduled = scheduler.schedule()
            steps += 1
            time.sleep(_MODEL if scheduled.num_scheduled_tokens else _IDLE)
            tokens += len(scheduled.num_scheduled_tokens)
            scheduler.update_from_output(scheduled, _answer(scheduled))
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        expected = _TEXTS * _TEXT_TOKENS + _PICTURES * _PICTURE_TOKENS
        if tokens != expected:
            raise RuntimeError(f"{tokens} tokens, {expected} were asked for")
        return tokens / (last - began), longest * 1e3

    return once


def _answer(scheduled: Any) -> Any:
    """Return a model's answer with a token for each request of a step."""
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(scheduled.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={each: index for index, each in enumerate(ids)},
        sampled_token_ids=[[7] for _ in ids],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
