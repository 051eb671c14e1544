"""Plays a scenario on one scheduler of vLLM: the model's and the workers' answers are made up, and nothing but the scheduler is counted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.replay.meters import Difference
from benchmarks.replay.scenarios import STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.replay.meters import Meter
    from benchmarks.replay.scenarios import Scenario
    from benchmarks.replay.traffic import Arrival

_MOST_STEPS: Final = 2 * STEPS
_RUNNING: Final = 32
_ROWS: Final = 40
_CAPACITY: Final = 400
_IN_TRANSIT: Final = 8
"""Steps from the first question for an encoder output to its arrival."""
_NOTHING: Final = Difference(lambda: 0)


@dataclass(slots=True)
class Played:
    """What one play was, and what its meter has counted.

    Attributes:
        steps, requests: that were taken, and that ended.
        transfers: loads, leases or encoder outputs that ended.
        entries: that Penstock has emitted.
        counted: by the meter.

    """

    steps: int = 0
    requests: int = 0
    transfers: int = 0
    entries: int = 0
    counted: float = 0.0

    def as_json(self) -> dict[str, float]:
        """Return it as JSON values."""
        return asdict(self)


class Player:
    """One scheduler, *instrumented* or not; the hooks of an instrumented one are installed while it is built and used."""

    def __init__(self, scenario: Scenario, directory: Path, *, instrumented: bool) -> None:
        """Build the scheduler as EngineCore builds it."""
        self._scenario = scenario
        self._instrumented = instrumented
        self._number = 0
        self._scheduler = _scheduler(scenario, directory, instrumented=instrumented)
        self._now = 0
        if scenario.kind == "picture":
            # A second of the encoder's connector is a step.
            self._scheduler.ec_connector.clock = lambda: float(self._now)

    def play(self, arrivals: Sequence[Arrival], meter: Meter, label: str) -> Played:
        """Let *arrivals* come, and step until all have ended and all their blocks are free.

        Raises:
            RuntimeError: that is not so after twice as many steps as there are arrivals for.

        """
        from penstock.instrumentation.runtime import runtime

        queues: tuple[Any, ...] = (runtime.emitter.events, runtime.emitter.transfers, runtime.emitter.probes)
        for queue in queues:
            queue.clear()
        coming: dict[int, list[Any]] = defaultdict(list)
        leases: dict[str, int] = {}
        for arrival in arrivals:
            made = self._request(arrival)
            coming[arrival.step].append((made, arrival))
            if arrival.lease is not None:
                leases[made.request_id] = arrival.lease
        workers = _Workers(self._scenario, leases, report=self._instrumented)
        played = Played()
        meter.begin(label)
        for step in range(_MOST_STEPS):
            # Requests that only decode have come before what is counted, and end after it.
            counts = bool(self._scenario.server) or 0 < step <= STEPS
            self._step(step, coming.pop(step, ()), workers, meter if counts else _NOTHING)
            played.steps += counts
            if not coming and not self._scheduler.requests:
                break
        else:
            raise RuntimeError(f"{len(self._scheduler.requests)} requests are left of {self._scenario.name}")
        played.counted = meter.end(label)
        if self._scenario.server:
            played.requests, played.entries = len(arrivals), sum(map(len, queues))
        played.transfers = workers.transfers
        return played

    def _step(self, step: int, arrived: Sequence[Any], workers: _Workers, meter: Meter) -> None:
        """Add what has arrived, and take one step."""
        scheduler = self._scheduler
        self._now = step
        for made, arrival in arrived:
            workers.on_arrival(made.request_id, arrival)
            meter.on()
            scheduler.add_request(made)
            meter.off()
        meter.on()
        scheduled = scheduler.schedule()
        meter.off()
        output = workers.answer(step, scheduler, scheduled)
        meter.on()
        scheduler.update_from_output(scheduled, output)
        meter.off()

    def _request(self, arrival: Arrival) -> Any:
        from tests.support.ec.fake_ec import image_request
        from tests.support.engine import schedulers

        number, self._number = self._number, self._number + 1
        name = f"cmpl-{number:08x}-0-0badcafe"
        common: dict[str, Any] = {
            "tokens": arrival.prompt,
            "first": 2 + number % _CAPACITY,
            "max_tokens": arrival.output,
        }
        if self._scenario.kind == "picture":
            return image_request(name, {10: (f"item-{number}", _ROWS)}, **common)
        params: dict[str, Any] | None = None
        if arrival.wait is not None:
            params = {**schedulers.REMOTE, "remote_request_id": f"cmpl-{number:08x}-0-0cafebad"}
        elif arrival.lease is not None:
            params = schedulers.LOCAL
        return schedulers.request(name, params=params, **common)


class _Workers:
    """What the workers and the model answer, by the step; with *report* they have Penstock's mixin, too."""

    def __init__(self, scenario: Scenario, leases: dict[str, int], *, report: bool) -> None:
        self._scenario = scenario
        self._leases = leases
        self._report = report
        self._waits: dict[str, int] = {}
        self._received: dict[int, set[str]] = defaultdict(set)
        self._sent: dict[int, set[str]] = defaultdict(set)
        self._kept: set[str] = set()
        self.transfers = 0

    def on_arrival(self, request_id: str, arrival: Arrival) -> None:
        """Note how long the load of a request is to take."""
        if arrival.wait is not None:
            self._waits[request_id] = arrival.wait
        if self._scenario.kind == "picture":
            self.transfers += 1

    def answer(self, step: int, scheduler: Any, scheduled: Any) -> Any:
        """Return what the model and the workers answer to a step."""
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(scheduled.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: index for index, each in enumerate(ids)},
            sampled_token_ids=[[7] for _ in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self._moved(step, scheduler, scheduled) if self._scenario.transfer else None,
        )

    def _moved(self, step: int, scheduler: Any, scheduled: Any) -> Any:
        from penstock.instrumentation.vllm.messages import WorkerReport
        from vllm.v1.outputs import KVConnectorOutput

        began = []
        for name in scheduled.kv_connector_metadata.reqs_to_recv:
            if name in self._waits:
                self._received[step + self._waits.pop(name)].add(name)
                began.append((name, 1))
        # A request that has ended and is still known has its blocks kept.
        for name in [each for each in self._leases if each in scheduler.requests]:
            if scheduler.requests[name].is_finished():
                self._sent[step + self._leases.pop(name)].add(name)
        received, sent = self._received.pop(step, set()), self._sent.pop(step, set())
        self.transfers += len(received) + len(sent)
        return KVConnectorOutput(
            finished_recving=received,
            finished_sending=sent,
            kv_connector_worker_meta=WorkerReport(began=tuple(began)) if began and self._report else None,
        )


def _scheduler(scenario: Scenario, directory: Path, *, instrumented: bool) -> Any:
    from penstock.instrumentation.vllm.scheduler.hook import create_scheduler
    from vllm.config import ECTransferConfig

    from benchmarks.load.timed_ec import MODULE
    from tests.support.engine import schedulers

    config = schedulers.vllm_config(directory, **scenario.transfer)
    config.scheduler_config.async_scheduling = True
    config.scheduler_config.max_num_seqs = _RUNNING
    if scenario.kind == "picture":
        config.ec_transfer_config = ECTransferConfig(
            ec_connector="TimedEcConnector",
            ec_role="ec_consumer",
            ec_connector_module_path=MODULE,
            ec_connector_extra_config={"seconds": float(_IN_TRANSIT), "blocks": False},
        )
    made = schedulers.build(create_scheduler if instrumented else schedulers.SCHEDULERS["async"], config)
    if scenario.kind == "picture":
        schedulers.make_room_for_items(made)
    return made
