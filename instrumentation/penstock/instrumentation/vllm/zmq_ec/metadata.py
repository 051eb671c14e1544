"""What the scheduler's and the workers' side of the connector say to each other with each step; vLLM pickles it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.item_state import LoadOrder
    from penstock.instrumentation.vllm.zmq_ec.region import RegionName
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorMetadata, ECConnectorWorkerMetadata


@dataclass
class StepOrders(ECConnectorMetadata):  # type: ignore[misc]  # Any, without vLLM
    """Scheduler to workers.

    Attributes:
        loads: slots to copy before this step's model runs.
        region: where the slots are; there whenever there are loads.
        publish: a producer's items that this step's new requests use, also where vLLM has them encoded already.

    """

    loads: tuple[LoadOrder, ...] = ()
    region: RegionName | None = None
    publish: tuple[str, ...] = ()


@dataclass
class StepReport(ECConnectorWorkerMetadata):  # type: ignore[misc]  # Any, without vLLM
    """Workers to scheduler: generations of slots; each rank names what it has finished with once.

    Attributes:
        done: they may be used for something else.
        unreadable: of these, those that could not be loaded.

    """

    done: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.done or self.unreadable)

    def aggregate(self, other: ECConnectorWorkerMetadata) -> StepReport:
        """Return what both ranks have said."""
        if not isinstance(other, StepReport):
            raise TypeError(f"cannot combine a StepReport with {type(other).__name__}")
        return StepReport(self.done + other.done, self.unreadable + other.unreadable)
