"""The facts of an engine that do not change while it runs."""

from __future__ import annotations

import time
from typing import Any

from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.compat import child_connectors, transfer_mode
from penstock.instrumentation.vllm.naming import UNKNOWN, address, engine_identity


def engine_facts(scheduler: Any) -> dict[str, Any]:
    """Return the constant fields of the wire's ``EngineFacts``; *scheduler* is built but has not run."""
    config = scheduler.vllm_config
    transfer, encoder = config.kv_transfer_config, config.ec_transfer_config
    facts = {
        "model": engine_identity.model_name(config),
        "vllm_version": engine_identity.vllm_version(),
        "kv_connector": str(transfer.kv_connector or "") if transfer is not None else "",
        "kv_role": str(transfer.kv_role or "") if transfer is not None else "",
        "kv_engine_id": str(transfer.engine_id or "") if transfer is not None else "",
        "kv_load_failure_policy": str(transfer.kv_load_failure_policy) if transfer is not None else "",
        "ec_connector": str(encoder.ec_connector or "") if encoder is not None else "",
        "ec_role": str(encoder.ec_role or "") if encoder is not None else "",
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "data_parallel_size": config.parallel_config.data_parallel_size,
        "block_size": scheduler.block_size,
        "num_gpu_blocks": config.cache_config.num_gpu_blocks or 0,
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "scheduler_class": f"{type(scheduler).__module__}.{type(scheduler).__qualname__}",
        "start_time_unix_nano": time.time_ns(),
        **_pair_facts(config),
    }
    listener = _listener(scheduler.connector)
    facts["transfer_mode"] = transfer_mode(listener)
    host, port = getattr(listener, "side_channel_host", None), getattr(listener, "side_channel_port", None)
    facts["side_channel"] = f"{host}:{port}" if host and port else ""
    with guard("engine_facts"):
        facts["ec_address"] = _encoder_address(getattr(scheduler, "ec_connector", None))
    return facts


def _listener(connector: Any) -> Any:
    """Return the scheduler's part of the connector whose side channel others ask: of several under one, NIXL's."""
    parts = [getattr(each, "connector_scheduler", None) for each in (connector, *child_connectors(connector))]
    return next((part for part in parts if transfer_mode(part)), parts[0])


def _encoder_address(connector: Any) -> str:
    """Return where others fetch this engine's encoder outputs; empty where it announces nothing."""
    told = getattr(connector, "announced_address", None)
    if isinstance(told, str):  # ZmqECConnector's
        return told
    producer = getattr(connector, "connector_scheduler", None)  # ECCPUConnector's, with NIXL
    found = address(getattr(producer, "_peer_host", None), getattr(producer, "_peer_port", None))
    return "" if found == UNKNOWN else found


def _pair_facts(config: Any) -> dict[str, Any]:
    """Return what decides whether another engine can use this one's KV blocks, beside the compatibility hash."""
    model = config.model_config
    facts: dict[str, Any] = {
        "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
    }
    # Not every model has attention.
    with guard("engine_facts"):
        facts["latent_attention"] = bool(model.use_mla)
        facts["hybrid"] = bool(model.is_hybrid)
        facts["kv_heads"] = int(model.get_total_num_kv_heads())
    return facts
