"""The words in which scheduler and fetcher speak of an item."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.zmq_ec.memory import Slot
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import SlotName
    from penstock.instrumentation.vllm.zmq_ec.wire import Content


class Stage(enum.Enum):
    """Where an item is."""

    PROBING = enum.auto()
    WAITING = enum.auto()
    MOVING = enum.auto()
    READY = enum.auto()
    MISSING = enum.auto()
    BAD = enum.auto()


class Readiness(enum.Enum):
    """What :meth:`Items.want` answers: load it, wait, do without, or its load failed while the request waited for it."""

    READY = enum.auto()
    PENDING = enum.auto()
    ABSENT = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """An order to the fetcher; *producers* are addresses that the request itself named."""

    serial: int
    item: str
    rows: int
    request_id: str
    producers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """An order to the workers: copy this slot."""

    item: str
    slot: SlotName
    rows: int
    width: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker's report.

    Attributes:
        done: generations of slots that it has finished with.
        unreadable: of these, those that it could not load.
        mapped: ranks that have mapped the region since their last report.
        unmapped: why a rank cannot.

    """

    done: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()
    mapped: int = 0
    unmapped: str = ""


@dataclass(slots=True, eq=False)
class ItemRecord:
    """What is known of one item; *untold* is a failure that nobody has taken yet."""

    wanted: FetchOrder
    stage: Stage = Stage.PROBING
    until: float = 0.0
    peer: Peer | None = None
    began_ns: int = 0
    slot: Slot | None = None
    content: Content | None = None
    untold: bool = False
    waiters: set[str] = field(default_factory=set)


PENDING: Final = (Stage.PROBING, Stage.WAITING, Stage.MOVING)
