"""``ZmqECConnector``: moves encoder outputs between vLLM instances over ZeroMQ.

``ec_connector_module_path: penstock.instrumentation.vllm.zmq_ec`` loads it, with or without Penstock's plugin and agent.
The parts, from the outside in:

- ``connector.py`` is vLLM's interface, in each role; ``settings.py`` its configuration, ``metadata.py`` what goes between scheduler
  and workers; ``registration.py`` makes its name known.
- A producer's worker: ``publisher.py`` (what to keep) → ``host_cache.py`` → ``responder.py`` (an answer for a request) →
  ``server.py`` (the socket).
- A consumer's scheduler: ``consumer.py`` (vLLM's questions) → ``items.py`` (what is known of each item, ``item_state.py``) ←
  ``fetcher.py`` (the thread) with ``producers.py`` (whom to ask), ``link.py`` (a socket), ``attempt.py`` (one item),
  ``transfer.py`` (its chunks) and ``telling.py`` (the observer).
- A consumer's worker: ``loader.py``.
- Memory: ``slots.py`` (who has which part), ``region.py`` (what is shared), ``memory.py`` (how much there is).
- ``wire.py``: the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.connector import ZmqECConnector

__all__ = ["ZmqECConnector"]


def __getattr__(name: str) -> Any:
    """Import the connector, and with it vLLM and torch, when it is asked for; the parts do without."""
    if name != "ZmqECConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.instrumentation.vllm.zmq_ec.connector import ZmqECConnector

    return ZmqECConnector
