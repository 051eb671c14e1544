"""What LMCache's adapters know and vLLM is not told: a server that does not answer is no miss, and why a load failed.

``LMCacheMPConnector`` asks a server. Both of its sides ping it on a thread of their own; while it does not answer, each look-up
is answered "nothing there", and loads that are under way are failed. Only what the adapters know already is read here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.messages import LoadFailureReasons
from penstock.instrumentation.vllm.naming import failure_modes, peers

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.messages import LoadReason

CONNECTORS: Final = frozenset({"LMCacheMPConnector", "LMCacheMPConnectorUpstream"})

_TOLD_MAX: Final = 1_024
"""Requests that have their answer; vLLM repeats a look-up while there is no room for the request."""

_SILENT: Final = "LMCache's server does not answer"
_REFUSED: Final = "LMCache's server answered that it has not loaded the blocks; its log has the reason"


def uses_server(connector: Any) -> bool:
    """Return whether *connector* is one that asks an LMCache server."""
    return any(kind.__name__ in CONNECTORS for kind in type(connector).__mro__)


def silent_servers(adapter: Any) -> list[str]:
    """Return the URLs of the servers that an *adapter* calls unhealthy, where it says which: a worker's has one and does not."""
    events = getattr(adapter, "_health_events", None) or {}
    return [url for url, healthy in events.copy().items() if not healthy.is_set()]


class LMCacheLookups:
    """The look-ups of one connector in the scheduler, on its thread."""

    def __init__(self, connector: Any, name: str) -> None:
        """Watch *connector*, called *name*, whose adapter holds the state of its servers."""
        self._connector = name
        self._adapter: Any = getattr(connector, "scheduler_adapter", None)
        self._told: dict[str, None] = {}

    def on_nothing_found(self, request_id: str) -> None:
        """Emit the look-up as a failed one if a server does not answer."""
        if getattr(self._adapter, "is_healthy", True) or request_id in self._told:
            return
        self.on_found(request_id)
        silent = silent_servers(self._adapter)
        failure = failure_modes.Failure(c.FAILURE_MODE_PROBE, c.ERROR_TYPE_TIMEOUT, error_text=_words(silent))
        fields = failure.fields() | {
            "channel": c.CHANNEL_KV,
            "connector": self._connector,
            "direction": c.DIRECTION_RECEIVE,
            "peer": (_peer(silent[0]) if silent else peers.Peer()).fields(),
        }
        runtime.emit_event("transfer_failure", fields, component=c.COMPONENT_SCHEDULER, request_id=request_id)

    def on_found(self, request_id: str) -> None:
        """Record that a request has its answer: LMCache asks no server again for one that is preempted or has lost its load."""
        if len(self._told) >= _TOLD_MAX:
            del self._told[next(iter(self._told))]
        self._told[request_id] = None

    def on_finished(self, request_id: str) -> None:
        """Forget a request."""
        self._told.pop(request_id, None)


class LMCacheNotes:
    """Why loads of one worker failed, on its thread.

    Attributes:
        reasons: of the loads that failed.
        expired: none; LMCache has no leases.

    """

    def __init__(self, connector: Any, rank: int) -> None:
        """Note what the adapter of *connector* knows."""
        self.reasons = LoadFailureReasons(rank)
        self.expired: tuple[str, ...] = ()
        self._adapter: Any = getattr(connector, "worker_adapter", None)
        failed = getattr(self._adapter, "_failed_request_ids", None)
        self._tells = isinstance(failed, set)

    def on_results(self, results: Any) -> None:
        """Note why loads of *results*, of vLLM's ``get_transfer_results``, have failed."""
        known = self._adapter._failed_request_ids if self._tells else ()
        failed = {each for each in results.finished_recving if each in known} | set(results.failed_recving)
        if not failed:
            return
        answers = getattr(self._adapter, "is_healthy", True)
        failure = failure_modes.Failure(
            c.FAILURE_MODE_LOAD,
            c.ERROR_TYPE_OTHER if answers else c.ERROR_TYPE_TIMEOUT,
            error_text=_REFUSED if answers else _words(silent_servers(self._adapter)),
        )
        for request_id in failed:
            self.reasons.note(request_id, failure)

    def drain(self) -> tuple[tuple[LoadReason, ...], tuple[str, ...]]:
        """Return the reasons since the last call, and no leases."""
        return self.reasons.drain(), ()


def _words(silent: list[str]) -> str:
    return failure_modes.cut(": ".join([_SILENT, *filter(None, [", ".join(silent)])]))


def _peer(url: str) -> peers.Peer:
    """Return the server as a peer; ``tcp://host:port``."""
    host, _, port = url.rpartition("//")[2].partition("/")[0].rpartition(":")
    return peers.Peer(peers.address(host.strip("[]"), port))
