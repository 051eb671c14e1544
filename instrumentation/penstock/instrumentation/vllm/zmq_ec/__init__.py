"""``ZmqECConnector``: moves encoder outputs between vLLM instances over ZeroMQ; an ``ec_connector_module_path``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.connector import ZmqECConnector

__all__ = ["ZmqECConnector"]


def __getattr__(name: str) -> Any:
    """Import the connector, and with it vLLM and torch, on first use."""
    if name != "ZmqECConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.instrumentation.vllm.zmq_ec.connector import ZmqECConnector

    return ZmqECConnector
