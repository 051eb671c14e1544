"""Adapters for connectors that report more than vLLM's base interface: saved requests, bytes, failure reasons.

A connector without an adapter is observed by the base interface alone: loads, sends, failures. Pure; metadata of an
unexpected shape is skipped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming import failure_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    SaveFinder = Callable[[Any, Any, Any], Iterator[str]]

T = TypeVar("T")

JOBS_MAX: Final = 8_192
"""Unfinished jobs that a JobTable keeps; the oldest is forgotten beyond that, and its transfer is not reported."""


class Job(NamedTuple):
    """A transfer that starts with a step, identified by the connector's own number; *request_id* is empty if unknown."""

    number: int
    direction: int
    request_id: str = ""


class FinishedJob(NamedTuple):
    """A finished job. *bytes* and *duration_ns* are 0 where the connector does not report them."""

    number: int
    direction: int
    bytes: int = 0
    duration_ns: int = 0


class JobAdapter(Protocol):
    """Reads the asynchronous transfers of a connector from its metadata.

    Attributes:
        place: where it saves to (``host``, ``disk``), for connectors that do not report it.

    """

    place: str

    def started_jobs(self, metadata: Any) -> Iterator[Job]:
        """Yield the jobs that start with a step; *metadata* is the scheduler's."""

    def finished_jobs(self, metadata: Any, directions: dict[int, int]) -> Iterator[FinishedJob]:
        """Yield the finished jobs. *metadata* is the worker's; *directions* maps unfinished job numbers to directions."""


def example_connector_saves(connector: Any, metadata: Any, scheduled: Any) -> Iterator[str]:
    """Yield the requests that vLLM's ExampleConnector saves with a step, matched by slots: its metadata has no ids."""
    size = connector._block_size
    stores = [each.slot_mapping for each in metadata.requests if each.is_store and len(each.slot_mapping)]
    for new in scheduled.scheduled_new_reqs if stores else ():
        table = new.block_ids[0]
        for index, slots in enumerate(stores):
            last = (len(slots) - 1) // size
            ends = int(slots[0]) // size, int(slots[-1]) // size
            if last < len(table) and ends == (table[0], table[last]):
                del stores[index]
                yield new.req_id
                break


class OffloadingJobAdapter:
    """``OffloadingConnector``: numbered jobs with request ids, and statistics of finished ones."""

    # Saves go to host memory first, whatever tiers lie behind it; for loads vLLM reports the tier.
    place = "host"

    def started_jobs(self, metadata: Any) -> Iterator[Job]:
        """Yield the loads and saves of a step."""
        for jobs, direction in (
            (metadata.load_jobs, c.DIRECTION_RECEIVE),
            (metadata.store_jobs, c.DIRECTION_SEND),
        ):
            for number, job in jobs.items():
                yield Job(number, direction, job.req_id)

    def finished_jobs(self, metadata: Any, directions: dict[int, int]) -> Iterator[FinishedJob]:
        """Yield the finished jobs, with their bytes where there are as many sizes as jobs."""
        numbers = [each for each in metadata.completed_jobs if each in directions]
        for direction, stats in (
            (c.DIRECTION_RECEIVE, metadata.transfer_stats.load),
            (c.DIRECTION_SEND, metadata.transfer_stats.store),
        ):
            ended = [each for each in numbers if directions[each] == direction]
            sizes = stats.sizes if len(stats.sizes) == len(ended) else [0] * len(ended)
            # vLLM reports only the sum of the durations.
            duration = int(stats.time * 1e9) if len(ended) == 1 else 0
            for number, size in zip(ended, sizes, strict=True):
                yield FinishedJob(number, direction, int(size), duration)


class SimpleOffloadJobAdapter:
    """``SimpleCPUOffloadConnector``: the saves of a step are one event without request ids."""

    place = ""

    def started_jobs(self, metadata: Any) -> Iterator[Job]:
        """Yield the save of a step, if there is one."""
        if metadata.store_event >= 0:
            yield Job(metadata.store_event, c.DIRECTION_SEND)

    def finished_jobs(self, metadata: Any, directions: dict[int, int]) -> Iterator[FinishedJob]:
        """Yield the finished saves."""
        for number in metadata.completed_store_events:
            if number in directions:
                yield FinishedJob(number, c.DIRECTION_SEND)


# Parts of the messages that MooncakeConnector's worker gives for failed loads, the peer's included, in lower case. One message
# may cover several requests with different reasons: the first match wins, and `incompatible`, which quarantines a peer until it
# restarts, comes last.
_MOONCAKE: Final = (
    ("not found from bootstrap", c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_OTHER),
    ("transfer engine returned", c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER),
    ("timeout waiting for p side", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_TIMEOUT),
    ("p num blocks less than d", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER),
    ("kv group count mismatch", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_INCOMPATIBLE),
    ("is not paired with p tp_rank", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_INCOMPATIBLE),
    ("cannot be aligned across pp sizes", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_INCOMPATIBLE),
    ("does not match registered layers", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_INCOMPATIBLE),
    ("matching kv region counts", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_INCOMPATIBLE),
    ("kv region length", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_INCOMPATIBLE),
)


def classify_mooncake_failure(reason: str, error: BaseException | None) -> failure_modes.Failure:
    """Classify a failed load of ``MooncakeConnector`` by the worker's *reason* and by the *error* being handled, if any."""
    text = failure_modes.cut(reason)
    if error is not None:
        classified = failure_modes.classify("transfer_failed", error)
        return replace(classified, upstream_type="", error_text=text)
    lowered = reason.lower()
    found = (kind for words, *kind in _MOONCAKE if words in lowered)
    mode, error_type = next(found, (c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER))
    return failure_modes.Failure(mode, error_type, error_text=text)


SAVE_FINDERS: Final[dict[str, SaveFinder]] = {"ExampleConnector": example_connector_saves}
"""Connector class name -> function of the connector, its metadata and the SchedulerOutput that yields saved requests."""

JOB_ADAPTERS: Final[dict[str, type[JobAdapter]]] = {
    "OffloadingConnector": OffloadingJobAdapter,
    "SimpleCPUOffloadConnector": SimpleOffloadJobAdapter,
}
"""Connector class name -> adapter of its asynchronous transfers."""


def adapter_for(table: dict[str, T], connector: Any) -> T | None:
    """Return the entry of *table* for the class of *connector* or its nearest base class; None if there is none."""
    return next((table[kind.__name__] for kind in type(connector).__mro__ if kind.__name__ in table), None)


class JobTable:
    """The unfinished jobs of one connector, by its own numbers. Pure; one thread."""

    def __init__(self, adapter: JobAdapter) -> None:
        """Keep the jobs that *adapter* reads."""
        self._adapter = adapter
        self._open: dict[int, Job] = {}

    def start(self, metadata: Any) -> None:
        """Add the jobs that start with a step."""
        for job in self._adapter.started_jobs(metadata):
            if len(self._open) >= JOBS_MAX:
                del self._open[next(iter(self._open))]
            self._open[job.number] = job

    def finish(self, metadata: Any) -> list[tuple[Job, FinishedJob]]:
        """Remove and return the jobs that the worker's *metadata* reports as finished."""
        return [
            (self._open.pop(done.number), done)
            for done in list(
                self._adapter.finished_jobs(metadata, {n: job.direction for n, job in self._open.items()})
            )
        ]
