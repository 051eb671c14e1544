"""``ZmqECConnector`` as vLLM builds it, and the hooks of one step as vLLM's runner calls them."""

from __future__ import annotations

import pickle
import warnings
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.support.ec.rig import PATIENT
from tests.support.engine.versions import encoder_output

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.config import ECTransferConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

    from tests.support.engine import schedulers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch

WIDTH = 64  # of the tiny model
PATH = "penstock.instrumentation.vllm.zmq_ec"


def config(directory: Path, role: str, port: int = 0, path: str | None = PATH, **extra: Any) -> Any:
    """Return the configuration of an engine with this connector."""
    found = schedulers.vllm_config(directory)
    found.ec_transfer_config = ECTransferConfig(
        ec_connector="ZmqECConnector",
        ec_role=role,
        ec_port=port,
        ec_buffer_size=16e6,
        ec_connector_module_path=path,
        ec_connector_extra_config=extra,
    )
    return found


@contextmanager
def connectors(directory: Path) -> Iterator[Callable[..., Any]]:
    """Build connectors by vLLM's factory; shut them down at the end, twice as some engines do."""
    made = []

    def build(side: str, role: str, *, change: Any = None, **given: Any) -> Any:
        configuration = config(directory, role, **given)
        if change is not None:
            change(configuration)
        connector = ECConnectorFactory.create_connector(configuration, ECConnectorRole[side])
        made.append(connector)
        return connector

    yield build
    for connector in made:
        connector.shutdown()
        connector.shutdown()


def pair(make: Callable[..., Any], **extra: Any) -> tuple[Any, Any]:
    """Return a producer's worker, and a consumer's scheduler that knows it."""
    producer = make("WORKER", "ec_producer")
    given = {"producers": [producer._publisher.server.address], "same_host": False, **PATIENT, **extra}
    return producer, make("SCHEDULER", "ec_consumer", **given)


def output(*, new: tuple[Any, ...] = (), freed: tuple[str, ...] = ()) -> Any:
    """Return a step, as far as a connector looks at it."""
    return SimpleNamespace(scheduled_new_reqs=new, free_encoder_mm_hashes=list(freed))


def save(producer: Any, item: str, sent: torch.Tensor) -> None:
    """Let the producer's worker encode."""
    producer.save_caches({item: sent}, item)


def run(worker: Any, orders: Any, cache: dict[str, torch.Tensor]) -> Any:
    """Run one step's hooks of a consumer's worker, as vLLM's runner does; return what it reports."""
    worker.bind_connector_metadata(pickle.loads(pickle.dumps(orders)))
    worker.start_load_caches(cache)
    report = worker.build_connector_worker_meta()
    worker.clear_connector_metadata()
    return report


def greet(scheduler: Any, *workers: Any) -> None:
    """Run a step that loads nothing, as any engine does before long."""
    orders = scheduler.build_connector_meta(output())
    for worker in workers:
        report = run(worker, orders, {})
        scheduler.update_connector_output(encoder_output(report))
