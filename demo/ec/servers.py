"""Configurations of vLLM servers that transfer encoder outputs: an encoder and a language model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from demo.common.client import post
from demo.servers import LOOPBACK, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from demo.servers import Server

ZMQ_MODULE = "penstock.instrumentation.vllm.zmq_ec"
PICTURES_PER_REQUEST = 4


def encoder_spec(
    name: str,
    *,
    port: int,
    extra: Mapping[str, Any] | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> ServerSpec:
    """Return an encode-only server that serves its outputs at *port*; *extra* is further connector configuration."""
    config = {**_zmq("ec_producer"), "ec_ip": LOOPBACK, "ec_port": port}
    config["ec_connector_extra_config"] = dict(extra or {})
    return _spec(name, config, args, env)


def language_spec(
    name: str,
    *,
    producers: Sequence[str],
    extra: Mapping[str, Any] | None = None,
    module: str = "demo.common.vllm_server",
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> ServerSpec:
    """Return a server that loads encoder outputs from *producers* (``host:port``) and encodes what they lack.

    Args:
        name: of the server.
        producers: whom it asks.
        extra: more of the connector's own configuration.
        module: what ``python -m`` runs.
        args: further arguments.
        env: further environment.

    """
    config = _zmq("ec_consumer")
    # Both engines stand for hosts of their own: what they exchange takes the network, which demo and tests cut.
    config["ec_connector_extra_config"] = {"producers": list(producers), "same_host": False, **(extra or {})}
    return _spec(name, config, args, env, module=module)


def forget_all(server: Server) -> None:
    """Empty a server's caches of prompts and encoder outputs, so that the next request misses both.

    The server must have been started by one of the specs here, and serve nothing now.

    Raises:
        ValueError: it refused.

    """
    for cache in ("reset_prefix_cache", "reset_encoder_cache"):
        answer = post(f"{server.url}/{cache}")
        if answer.status != 200:  # noqa: PLR2004  (OK)
            raise ValueError(f"{server.spec.name} answered {answer.status} to {cache}: {answer.text[:300]}")


def file_spec(
    name: str,
    *,
    directory: str,
    module: str = "demo.common.vllm_server",
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> ServerSpec:
    """Return a server that encodes, writes its outputs below *directory*, and reads them from there: vLLM's own example."""
    config = {
        "ec_connector": "ECExampleConnector",
        "ec_role": "ec_both",
        "ec_connector_extra_config": {"shared_storage_path": directory},
    }
    return _spec(name, config, args, env, module=module)


def _zmq(role: str) -> dict[str, Any]:
    return {
        "ec_connector": "ZmqECConnector",
        "ec_connector_module_path": ZMQ_MODULE,
        "ec_role": role,
    }


def _spec(
    name: str,
    config: Mapping[str, Any],
    args: Sequence[str],
    env: Mapping[str, str] | None,
    *,
    module: str = "demo.common.vllm_server",
) -> ServerSpec:
    return ServerSpec(
        name,
        module=module,
        args=(
            *("--ec-transfer-config", json.dumps(config)),
            *("--limit-mm-per-prompt", json.dumps({"image": PICTURES_PER_REQUEST})),
            *args,
        ),
        # The calls that empty the caches are for development only.
        env={"VLLM_SERVER_DEV_MODE": "1", **(env or {})},
    )
