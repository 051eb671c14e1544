"""What Penstock adds to EngineCore's thread, in instructions, which no other load changes: ``make bench ONLY=instructions``.

Recorded traffic of two engines (:mod:`benchmarks.replay.traffic`) on vLLM's own scheduler, with and without the mixins, in processes
of their own: under callgrind, under strace, and alone by turns. Real NIXL workers by the thread's CPU time.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.areas import exporter_cost
from benchmarks.harness.results import Budget, Row, Section, Spread, against
from benchmarks.replay import children
from benchmarks.replay.__main__ import WITH, WITHOUT
from benchmarks.replay.costs import STEPS_SHOWN, Added, added, parts, share, throughput
from benchmarks.replay.meters import build
from benchmarks.replay.scenarios import SCENARIOS
from benchmarks.replay.workers import IDLE, LEASE, LOAD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.harness.interleave import Run
    from benchmarks.replay.children import Plays
    from benchmarks.replay.scenarios import Scenario

AREA: Final = "instructions"
TITLE: Final = "A step of the engine, in instructions"
MEANING: Final = (
    "What noise cannot touch: instructions that the hooks add to a step of vLLM's scheduler under recorded "
    "traffic, with the workers' and the exporter's CPU time, and what share of a step of 2, 10 and 30 ms that "
    "is. A step in which nothing happens pays 2 µs; requests, loads, leases and encoder outputs have a price "
    "each, so a model whose step takes 2 ms pays more than one per cent for a load in every third step, and "
    "one whose step takes 6 ms less."
)
PLOTTED: Final = ("instructions a step", "throughput", "allocations")
_NOTES: Final = (
    (
        "What a real engine's throughput cannot decide, because two equal engines differ by more. Traffic as two engines over NIXL have served it (a recorded incident, "
        "`tests/golden/incidents/nothing-wrong.bundle`: arrivals, tokens, waits for KV, leases), sixteen recordings at once, evenly shifted, over and over for 300 steps; a step of "
        "the replay is as long as the recorded engine's (2.2 to 2.5 ms). It is played on vLLM's `AsyncScheduler`, with Penstock's hooks and without; the answers of model and workers are made up and not in "
        "the counts, which are those of `add_request`, `schedule` and `update_from_output`. *Decode only*: eight requests. *Prefill-heavy*: the prefill engine's requests without leases, at most four "
        "tokens out. *Encoder → language*: the decode engine's requests, each with a picture that arrives eight steps after the first question."
    ),
    (
        "*Instructions*: by callgrind, of this thread, with the garbage collector off and `PYTHONHASHSEED=0`; what differs between plays is where objects lie. *In µs*: these by the "
        "instructions that the plain scheduler does in a µs of CPU time, in other processes without callgrind, play by play. *CPU time, by turns*: with less without, of the same plays; it has the machine's noise in it, and is more where what is added runs from colder caches than the plain scheduler. "
        "*Allocations*: calls of Python's allocator, freelists are not among them. *Memory kept*: blocks of that allocator. "
        "*By difference*: a transfer's part has in it what its connector adds to the steps and requests of its scenario, the lease's that of requests without a lease, too. *System calls*: by strace, of this thread."
    ),
    (
        "*Workers*: real NIXL workers over TCP in one process, by turns; with one GPU they run in EngineCore's thread. *Exporter*: CPU time of all other threads an entry, at 1,000 entries a second beside a "
        "busy main thread (as in *Emit path*), times the entries of a step; as if all of it kept the interpreter's lock, of which gRPC's own threads keep nothing. *Share* and *throughput* are of "
        "the sum of all three: a step as long as the model takes, and what is added comes on top of it, as if nothing ran beside. In vLLM's asynchronous scheduling the scheduler runs while the GPU does: there less than "
        "that is lost."
    ),
)
_COUNTED: Final = 3
_TIMED: Final = 30
_WORKER_TURNS: Final = 40
_EXPORTER_ROUNDS: Final = 5
_KEPT: Final = 3
_NS: Final = 1e3
_PEER: Final = "without Penstock"
_BUDGETED: Final = 2
_IDLE_SCENARIO, _SHORT_SCENARIO = "decode", "short"
_TRANSFERS: Final = {
    "load": "a load, decode side over NIXL",
    "lease": "a lease, prefill side over NIXL",
    "picture": "an encoder output, eight steps of waiting",
}
_WORKERS: Final = {"load": LOAD, "lease": LEASE}


def measure(run: Run) -> Section:
    """Measure the area."""
    build()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        directory = Path(place)
        events = directory / "events.json"
        children.record(children.RECORDED, events)
        run.say("under callgrind")
        instructions, allocations = children.count(events, directory, _COUNTED)
        run.say("under strace")
        calls = children.trace(events, directory, 1)
        run.say("by turns")
        clock = children.measured("clock", events, _TIMED)
        kept = children.measured("blocks", events, _KEPT)
    run.say("NIXL workers")
    workers = children.workers(_WORKER_TURNS)
    exporter = exporter_cost.background(run, _EXPORTER_ROUNDS)
    measures = Measures(instructions, allocations, calls, clock, kept, workers, exporter)
    rows = measures.parts()
    for scenario in SCENARIOS:
        rows += measures.rows(scenario)
    return Section(AREA, TITLE, _NOTES, [*rows, *measures.workers()])


class Measures:
    """What was measured, and the rows it comes to."""

    def __init__(
        self,
        instructions: Plays,
        allocations: Plays,
        calls: Plays,
        clock: Plays,
        kept: Plays,
        workers: Mapping[str, Mapping[str, Sequence[float]]],
        exporter: Sequence[float],
    ) -> None:
        """Take the plays of each meter, nanoseconds of the workers, and nanoseconds of the exporter an entry."""
        self._instructions = instructions
        self._allocations = allocations
        self._calls = calls
        self._clock = clock
        self._kept = kept
        self._workers = workers
        self._exporter = exporter
        self._added: dict[str, Added] = {
            each.kind: added(instructions[each.kind, WITH], instructions[each.kind, WITHOUT])
            for each in SCENARIOS
        }

    def parts(self) -> list[Row]:
        """Return what is added by a step, a request and a transfer, by difference of scenarios."""
        group = "Added to the scheduler, by difference of the scenarios"
        found = parts(self._added, idle=_IDLE_SCENARIO, requests=_SHORT_SCENARIO, transfers=tuple(_TRANSFERS))
        rows = []
        for what, kind, value in (
            ("a step", _IDLE_SCENARIO, found.step),
            ("a request", _SHORT_SCENARIO, found.request),
            *((_TRANSFERS[kind], kind, value) for kind, value in found.transfer.items()),
        ):
            rows += [
                Row(f"{what}, instructions", "", Spread.one(value), group),
                Row(what, "µs", Spread.of([value / rate for rate in self._rates(kind)]), group),
            ]
        return rows

    def rows(self, scenario: Scenario) -> list[Row]:
        """Return the table of one scenario."""
        group, kind = scenario.name, scenario.kind
        more = self._added[kind]
        scheduler = [more.by_step / rate for rate in self._rates(kind)]
        worker = self._worker_us(kind, more)
        # A worker that loads emits a sample of each transfer.
        entries = (more.play.entries + (more.play.transfers if kind == LOAD else 0)) / more.play.steps
        exporter = statistics.median(self._exporter) / _NS * entries
        total = [each + worker + exporter for each in scheduler]
        calls = [self._calls[kind, side][0].by_step for side in (WITH, WITHOUT)]
        rows = [
            self._pair("instructions a step", "", self._instructions, scenario),
            Row("added: scheduler, in µs", "µs", Spread.of(scheduler), group),
            Row("added: scheduler, CPU time by turns", "µs", self._turns(self._clock, kind, _NS), group),
        ]
        if worker:
            rows.append(Row("added: worker", "µs", Spread.one(worker), group))
        rows += [
            Row("added: exporter", "µs", Spread.one(exporter), group),
            Row("added to a step", "µs", Spread.of(total), group),
            *(
                Row(
                    f"share of a step of {length} ms",
                    "%",
                    Spread.of([share(each, length) for each in total]),
                    group,
                )
                for length in STEPS_SHOWN
            ),
            self._pair("allocations a step", "", self._allocations, scenario),
            Row("memory kept a step, added", "blocks", self._turns(self._kept, kind, 1.0), group),
            Row("system calls a step", "", Spread.one(calls[0]), group, _PEER, Spread.one(calls[1])),
            Row("requests a step", "", Spread.one(more.play.requests / more.play.steps), group),
            Row("entries a step", "", Spread.one(entries), group),
        ]
        return [*rows, self._budget(group, total)]

    def workers(self) -> list[Row]:
        """Return the table of the NIXL workers."""
        rows = []
        for what, name in (
            ("a step without a transfer", IDLE),
            ("a load, decode side", LOAD),
            ("a lease, prefill side", LEASE),
        ):
            sides = self._workers[name]
            ours, theirs = ([each / _NS for each in sides[side]] for side in (WITH, WITHOUT))
            more = [mine - other for mine, other in zip(ours, theirs, strict=True)]
            group = "NIXL workers, CPU time by turns"
            rows += [
                against(what, "µs", ours, _PEER, theirs, group=group),
                Row(f"{what}, added", "µs", Spread.of(more), group),
            ]
        return rows

    def _budget(self, group: str, total: Sequence[float]) -> Row:
        length = _BUDGETED
        return Row(
            f"throughput at a step of {length} ms",
            "",
            None,
            group,
            _PEER,
            None,
            Spread.of([throughput(each, length) for each in total]),
            Budget(
                f"real vLLM throughput: Penstock ÷ without, by instructions, a step of {length} ms: {group}",
                0.99,
                of="ratio",
                at_most=False,
            ),
            "higher",
        )

    def _rates(self, kind: str) -> list[float]:
        """Return the plain scheduler's instructions in a µs, one a play by the clock."""
        middle = statistics.median(each.counted for each in self._instructions[kind, WITHOUT])
        return [middle / (each.counted / _NS) for each in self._clock[kind, WITHOUT]]

    def _worker_us(self, kind: str, more: Added) -> float:
        """Return what the workers add to a step: a step without a transfer, and the transfers."""
        if kind not in _WORKERS:
            return 0.0
        idle, transfer = (
            statistics.median(
                mine - other
                for mine, other in zip(self._workers[name][WITH], self._workers[name][WITHOUT], strict=True)
            )
            for name in (IDLE, _WORKERS[kind])
        )
        return (idle + transfer * more.play.transfers / more.play.steps) / _NS

    def _turns(self, plays: Plays, kind: str, unit: float) -> Spread:
        """Return with less without by a step, turn by turn."""
        ours, theirs = plays[kind, WITH], plays[kind, WITHOUT]
        return Spread.of(
            [(mine.by_step - other.by_step) / unit for mine, other in zip(ours, theirs, strict=True)]
        )

    @staticmethod
    def _pair(what: str, unit: str, plays: Plays, scenario: Scenario) -> Row:
        ours, theirs = ([each.by_step for each in plays[scenario.kind, side]] for side in (WITH, WITHOUT))
        return against(what, unit, ours, _PEER, theirs, group=scenario.name)
