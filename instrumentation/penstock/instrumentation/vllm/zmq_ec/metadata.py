"""Messages of a step between the connector's scheduler and worker sides. vLLM pickles them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.instrumentation.vllm.zmq_ec.consumer import Loaded

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.consumer import LoadOrder
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import RegionName
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorMetadata, ECConnectorWorkerMetadata


@dataclass
class StepOrders(ECConnectorMetadata):  # type: ignore[misc]  # Any, without vLLM
    """Scheduler to workers.

    Attributes:
        loads: slots to copy before this step's model runs.
        region: where the slots are; set whenever there are loads, and until every rank has mapped it.
        publish: a producer's items that this step's new requests use, also where vLLM has them encoded already.

    """

    loads: tuple[LoadOrder, ...] = ()
    region: RegionName | None = None
    publish: tuple[str, ...] = ()


@dataclass
class StepReport(ECConnectorWorkerMetadata):  # type: ignore[misc]  # Any, without vLLM
    """Workers to scheduler; each rank reports each fact once.

    Attributes:
        loaded: the sum of the ranks' reports.

    """

    loaded: Loaded = field(default_factory=Loaded)

    def __bool__(self) -> bool:
        return self.loaded != Loaded()

    def aggregate(self, other: ECConnectorWorkerMetadata) -> StepReport:
        """Return the sum of both reports."""
        if not isinstance(other, StepReport):
            raise TypeError(f"cannot combine a StepReport with {type(other).__name__}")
        ours, theirs = self.loaded, other.loaded
        return StepReport(
            Loaded(
                ours.done + theirs.done,
                ours.unreadable + theirs.unreadable,
                ours.mapped + theirs.mapped,
                ours.unmapped or theirs.unmapped,
            )
        )
