"""What some of vLLM's connectors say themselves, beyond the base interface: whom they save for, bytes, why a load failed.

A connector that is not named here is told by the base interface alone: its loads, its sends, its failures. Pure; what does
not look as expected is not told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming import failure_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    SavesIn = Callable[[Any, Any, Any], Iterator[str]]

T = TypeVar("T")


class Job(NamedTuple):
    """A transfer that begins with a step, by the connector's own number; *request_id* is empty where it names none."""

    number: int
    direction: int
    request_id: str = ""


class Done(NamedTuple):
    """A job that has ended, with what the connector knows about it; 0 is not known."""

    number: int
    direction: int
    bytes: int = 0
    duration_ns: int = 0


class JobAdapter(Protocol):
    """How a connector names what it does beside the steps.

    Attributes:
        place: where it saves to (``host``, ``disk``) if the connector itself does not say.

    """

    place: str

    def begun(self, metadata: Any) -> Iterator[Job]:
        """Yield what begins with a step; *metadata* is the scheduler's."""

    def done(self, metadata: Any, directions: dict[int, int]) -> Iterator[Done]:
        """Yield what has ended; *metadata* is the worker's, *directions* are those of the numbers that have begun."""


def saves_of_example(connector: Any, metadata: Any, scheduled: Any) -> Iterator[str]:
    """Yield the requests that vLLM's ExampleConnector saves with a step: its metadata has their slots, not their ids."""
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


class OffloadingJobs:
    """``OffloadingConnector``: numbered jobs with their request, and statistics of those that have ended."""

    # What is saved goes to memory first, whatever tiers are behind it; of a load vLLM tells the tier.
    place = "host"

    def begun(self, metadata: Any) -> Iterator[Job]:
        """Yield the jobs of a step."""
        for jobs, direction in (
            (metadata.load_jobs, c.DIRECTION_RECEIVE),
            (metadata.store_jobs, c.DIRECTION_SEND),
        ):
            for number, job in jobs.items():
                yield Job(number, direction, job.req_id)

    def done(self, metadata: Any, directions: dict[int, int]) -> Iterator[Done]:
        """Yield the jobs that have ended, with their bytes where there are as many sizes as jobs."""
        numbers = [each for each in metadata.completed_jobs if each in directions]
        for direction, stats in (
            (c.DIRECTION_RECEIVE, metadata.transfer_stats.load),
            (c.DIRECTION_SEND, metadata.transfer_stats.store),
        ):
            ended = [each for each in numbers if directions[each] == direction]
            sizes = stats.sizes if len(stats.sizes) == len(ended) else [0] * len(ended)
            # Of several only the sum of their times is known.
            duration = int(stats.time * 1e9) if len(ended) == 1 else 0
            for number, size in zip(ended, sizes, strict=True):
                yield Done(number, direction, int(size), duration)


class EventJobs:
    """``SimpleCPUOffloadConnector``: a step's saves are one event, without the requests they are for."""

    place = ""

    def begun(self, metadata: Any) -> Iterator[Job]:
        """Yield the step's save."""
        if metadata.store_event >= 0:
            yield Job(metadata.store_event, c.DIRECTION_SEND)

    def done(self, metadata: Any, directions: dict[int, int]) -> Iterator[Done]:
        """Yield the saves that have ended."""
        for number in metadata.completed_store_events:
            if number in directions:
                yield Done(number, c.DIRECTION_SEND)


# What MooncakeConnector's worker says when a load has failed, the peer's words included, in small letters. One text may be about
# several requests that failed for different reasons: the first line here wins, and `incompatible`, for which a peer is
# quarantined until it restarts, comes last.
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


def failure_of_mooncake(reason: str, error: BaseException | None) -> failure_modes.Failure:
    """Classify a failed load of ``MooncakeConnector`` by its worker's *reason*, and by the *error* that it handles, if it does."""
    text = failure_modes.cut(reason)
    if error is not None:
        told = failure_modes.classify("transfer_failed", error)
        return replace(told, upstream_type="", error_text=text)
    lowered = reason.lower()
    found = (kind for words, *kind in _MOONCAKE if words in lowered)
    mode, error_type = next(found, (c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER))
    return failure_modes.Failure(mode, error_type, error_text=text)


SAVES: Final[dict[str, SavesIn]] = {"ExampleConnector": saves_of_example}
"""By a connector's class: the requests that are saved with a step, of the connector, its metadata and the scheduler's output."""

JOBS: Final[dict[str, type[JobAdapter]]] = {
    "OffloadingConnector": OffloadingJobs,
    "SimpleCPUOffloadConnector": EventJobs,
}
"""By a connector's class: how it names what it does beside the steps."""


def named(table: dict[str, T], connector: Any) -> T | None:
    """Return what *table* has for the class of *connector*, or for one that it derives from."""
    return next((table[kind.__name__] for kind in type(connector).__mro__ if kind.__name__ in table), None)
