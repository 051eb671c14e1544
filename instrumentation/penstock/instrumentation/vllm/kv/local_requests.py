"""Requests that compute here what a connector would have loaded: what NIXL's scheduler has to know of them."""

from __future__ import annotations

from typing import Any

from penstock.instrumentation.vllm.compat import child_connectors


def keep_local(connector: Any, request: Any) -> None:
    """Have *connector*, or a child of it, load nothing for *request*, which has no blocks yet.

    NIXL's scheduler has asked the peer to keep the blocks since the request came, and stops: the peer's lease runs out by
    itself. With ``bidirectional_kv_xfer`` its workers keep a finished request's blocks for the next turn, and release only
    those of requests that were in a batch of theirs; vLLM says so of those that load.
    """
    for each in (connector, *child_connectors(connector)):
        nixl: Any = getattr(each, "connector_scheduler", None)
        stop = getattr(nixl, "_stop_heartbeat", None)
        if stop is not None:
            stop(request.request_id)
        if getattr(nixl, "is_bidirectional_kv_xfer_enabled", False):
            nixl._reqs_in_batch.add(request.request_id)
    request.kv_transfer_params["do_remote_prefill"] = False
