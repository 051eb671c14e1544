"""The states, orders and reports of an item, shared by scheduler, fetcher and workers."""

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
    """Result of :meth:`Items.want`: loadable, pending, not available, or failed while the request waited."""

    READY = enum.auto()
    PENDING = enum.auto()
    ABSENT = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """Scheduler to fetcher: get this item.

    Attributes:
        producers: addresses that the request named.
        admitted: the only addresses that may be asked; None for all.

    """

    serial: int
    item: str
    rows: int
    request_id: str
    producers: tuple[str, ...] = ()
    admitted: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Scheduler to workers: copy this slot."""

    item: str
    slot: SlotName
    rows: int
    width: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Worker to scheduler.

    Attributes:
        done: generations of slots that need no longer be kept for it.
        unreadable: the subset that it could not load.
        mapped: ranks that have mapped the region since their last report.
        unmapped: why a rank cannot.

    """

    done: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()
    mapped: int = 0
    unmapped: str = ""


@dataclass(slots=True, eq=False)
class ItemRecord:
    """State of one item.

    Attributes:
        checksum: by the producer's word, once the content is here.
        undecided: set while its failure awaits a decision.
        rehearsed: a fault drill makes it late.

    """

    wanted: FetchOrder
    stage: Stage = Stage.PROBING
    until: float = 0.0
    peer: Peer | None = None
    began_ns: int = 0
    slot: Slot | None = None
    content: Content | None = None
    checksum: int | bytes | None = None
    undecided: bool = False
    rehearsed: bool = False
    waiters: set[str] = field(default_factory=set)


PENDING: Final = (Stage.PROBING, Stage.WAITING, Stage.MOVING)
