"""The messages, and the options, keys and events of a connection."""

from __future__ import annotations

from penstock.instrumentation.vllm.zmq_ec.wire import protocol
from penstock.instrumentation.vllm.zmq_ec.wire.curve_files import CurveFiles
from penstock.instrumentation.vllm.zmq_ec.wire.protocol import Content

__all__ = [
    "Content",
    "CurveFiles",
    "protocol",
]
