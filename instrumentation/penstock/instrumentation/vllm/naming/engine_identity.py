"""The identity of an engine, from vLLM's configuration. The words are vLLM's own, so that Penstock's series join its series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks import registry
from penstock.instrumentation.runtime import runtime
from penstock.proto.names import ENGINE_CORE

if TYPE_CHECKING:
    from collections.abc import Collection

_SEEN = {
    frozenset({c.ROLE_PREFILL}): "prefill",
    frozenset({c.ROLE_DECODE}): "decode",
    frozenset({c.ROLE_PREFILL, c.ROLE_DECODE}): "both",
}


def vllm_version() -> str:
    """Return the version of the vLLM that runs, whatever its distribution is called."""
    import vllm

    return str(vllm.__version__)


def engine_index(config: Any) -> str:
    """Return vLLM's engine index in its server, as in the label ``engine`` of its metrics."""
    return str(config.parallel_config.data_parallel_index)


def model_name(config: Any) -> str:
    """Return the name that the model is served by."""
    served = config.model_config.served_model_name
    if isinstance(served, (list, tuple)):
        served = served[0] if served else ""
    return str(served or config.model_config.model)


def worker_process(config: Any) -> str:
    """Return the name of the process that a worker runs in: the engine's own under the ``uni`` executor."""
    return ENGINE_CORE if config.parallel_config.distributed_executor_backend == "uni" else "worker"


def excuse_hooks(config: Any) -> None:
    """Name the hooks that an engine of the VllmConfig *config* has no use for."""
    if config.ec_transfer_config is None:
        registry.excuse("ec_connector", "zmq_ec_connector")


def identify_worker(config: Any) -> None:
    """Identify this process, which holds a worker of the VllmConfig *config*."""
    excuse_hooks(config)
    runtime.identify(
        process=worker_process(config),
        key=engine_index(config),
        role=guess_role(config),
        model=model_name(config),
        vllm_version=vllm_version(),
        rank=config.parallel_config.rank,
    )


def guess_role(config: Any, seen: Collection[int] = ()) -> str:
    """Return a server's role, as far as it is known without ``PENSTOCK_LABELS``; empty if it is not.

    Args:
        config: the VllmConfig.
        seen: ``ROLE_*`` of the requests so far, for ``kv_both``, which leaves it open.

    """
    encoder = config.ec_transfer_config
    if encoder is not None and encoder.ec_role == "ec_producer":
        return "encoder"
    transfer = config.kv_transfer_config
    if transfer is None:
        return ""
    if transfer.kv_role == "kv_producer":
        return "prefill"
    if transfer.kv_role == "kv_consumer":
        return "decode"
    return _SEEN.get(frozenset(seen), "")
