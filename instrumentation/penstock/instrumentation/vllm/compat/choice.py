"""Which differences a class of vLLM's needs: chosen by what is there, never by a version's number.

The hooks are written for the newest vLLM. A difference gives an older one the shape of the newest: a mixin between Penstock's
and vLLM's class, or a function. The docstring of its module says until which version it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.instrumentation.vllm.compat.connectors import ConnectorTransferResults, TransferResults
from penstock.instrumentation.vllm.compat.encoder import EncoderReports
from penstock.instrumentation.vllm.compat.failures import FailedReceives, GivenUpLoads, StaleOutput
from penstock.instrumentation.vllm.compat.nixl_worker import SendLeases, WriterHandshakes
from penstock.instrumentation.vllm.compat.waiting_requests import BlockedWaiting, KvFetchStages, QueueLooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.instrumentation.vllm.compat.difference import Difference

_SCHEDULER: Final[tuple[type[Difference], ...]] = (
    KvFetchStages,
    BlockedWaiting,
    QueueLooks,
    FailedReceives,
    StaleOutput,
)
_WORKER: Final[tuple[type[Difference], ...]] = (
    SendLeases,
    TransferResults,
    GivenUpLoads,
    WriterHandshakes,
)
_CONNECTOR: Final[tuple[type[Difference], ...]] = (ConnectorTransferResults,)


def scheduler_differences(scheduler: type) -> Sequence[type]:
    """Return the mixins that go between Penstock's and a scheduler class, the innermost first; none for the newest vLLM."""
    return [each for each in _SCHEDULER if each.is_needed(scheduler)]


def worker_differences(worker: type) -> Sequence[type]:
    """Return the same for the class of a NIXL worker."""
    return [each for each in _WORKER if each.is_needed(worker)]


def connector_differences(connector: type) -> Sequence[type]:
    """Return the same for the class of a KV connector in a worker."""
    return [each for each in _CONNECTOR if each.is_needed(connector)]


def encoder_differences(connector: type) -> Sequence[type]:
    """Return the same for the class of an EC connector in a worker."""
    return [EncoderReports] if EncoderReports.is_needed(connector) else []
