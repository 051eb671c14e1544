"""What the installed vLLM has: for tests of what only a later one does, and for stand-ins that look like it."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
from penstock.instrumentation.vllm.recovery.client_error import PREFIX

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    import vllm
    from vllm.v1.outputs import ECConnectorOutput, KVConnectorOutput

    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
    except ImportError:  # until 0.29
        from penstock.instrumentation.vllm.compat.connectors import (
            Results as KVConnectorTransferResults,
        )

VERSION = tuple(map(int, vllm.__version__.split("+")[0].split(".")[:2]))

PLACE = "host" if VERSION >= (0, 32) else "unknown"
"""Where a load of an offloading connector comes from, as far as vLLM tells."""

TELLS_FAILED_RECEIVES = any(each.name == "failed_recving" for each in dataclasses.fields(KVConnectorOutput))
"""Whether workers tell a failed load by its request; until 0.29 they tell its blocks."""

__all__ = [
    "PLACE",
    "TELLS_FAILED_RECEIVES",
    "VERSION",
    "KVConnectorTransferResults",
    "client_text",
    "connector_output",
    "encoder_output",
    "from_version",
    "transfer_results",
]


def from_version(major: int, minor: int, why: str) -> pytest.MarkDecorator:
    """Skip a test on a vLLM before that version; *why* continues "an earlier vLLM"."""
    return pytest.mark.skipif((major, minor) > VERSION, reason=f"an earlier vLLM {why}")


def connector_output(**fields: Any) -> Any:
    """Return a ``KVConnectorOutput`` with those of *fields* that this vLLM has."""
    if not TELLS_FAILED_RECEIVES:
        fields.pop("failed_recving", None)
    return KVConnectorOutput(**fields)


def client_text(output: Any) -> Any:
    """Return what the API process gets to know of why a request failed, as an earlier vLLM's stop reason has it; no object."""
    error = getattr(output, "error", None)
    if error is not None:
        return f"{PREFIX}{error.message}"
    reason = output.stop_reason
    return reason.partition("\n")[0] if isinstance(reason, str) else reason


def encoder_output(report: Any) -> Any:
    """Return the ``ECConnectorOutput`` of a step, with the worker metadata *report*."""
    output: Any = ECConnectorOutput()
    output.ec_connector_worker_meta = report
    return output


def transfer_results(connector: Any, finished: set[str]) -> Any:
    """Ask a connector in a worker for a step's results, as vLLM does; *finished* are requests."""
    if hasattr(connector, "get_transfer_results"):
        return connector.get_transfer_results(finished)
    sending, recving = connector.get_finished(finished)
    return KVConnectorTransferResults(sending or set(), recving or set())
