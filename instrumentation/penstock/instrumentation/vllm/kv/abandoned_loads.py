"""Loads that a deadline gave up in the scheduler, because their connector takes no orders: the request ends, the transfer goes on.

vLLM keeps the blocks of a request that ends while it waits for its load, until the connector reports the load's end. A connector
that reports a send for every request that has ended (LMCache) would have vLLM free them before that, and end the engine
with the load's own report. So of an abandoned load only that report reaches vLLM.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import child_connectors
from penstock.instrumentation.vllm.messages import LoadFailure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.requests import RequestRecord
    from penstock.rules import Overdue

SENDS_MAX: Final = 4_096
"""Loads that have ended and of which a send may still be reported; the oldest is forgotten beyond that."""

_NIXL: Final = "Nixl"


def loading_connector(connector: Any, request_id: str) -> Any:
    """Return the connector that loads for a request: *connector*, or the child of a ``MultiConnector`` that it has chosen."""
    children = child_connectors(connector)
    chosen = getattr(connector, "_requests_to_connector", {}).get(request_id) if children else None
    return connector if chosen is None else loading_connector(children[chosen], request_id)


def takes_orders(connector: Any) -> bool:
    """Return whether the workers of a connector that loads obey an order to end the load: NIXL's."""
    return any(each.__name__.startswith(_NIXL) for each in type(connector).__mro__)


@dataclass(slots=True)
class _Abandoned:
    """A load that was given up; *blocks* that its request holds, none before it has ended; *since_ns* is wall clock."""

    peer: Peer
    blocks: int = 0
    since_ns: int = 0
    sends: bool = False


class AbandonedLoads:
    """The abandoned loads of one scheduler; on its thread.

    Bounded by the scheduler's own requests: vLLM forgets a request when its blocks are free, and so does this.

    Attributes:
        any: whether there is one, or a send of one may still be reported. A step without pays for no more than this.

    """

    def __init__(self) -> None:
        self._open: dict[str, _Abandoned] = {}
        self._late_sends: dict[str, None] = {}
        self.any = False

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def give_up(self, record: RequestRecord, overdue: Overdue, peer: Peer) -> LoadFailure:
        """Record and emit that a load from *peer* is over its deadline, and that its request does not wait for it any more."""
        self._open[record.request_id], self.any = _Abandoned(peer), True
        fields = {
            "channel": c.CHANNEL_KV,
            "connector": record.connector,
            "direction": c.DIRECTION_RECEIVE,
            "mode": c.FAILURE_MODE_TIMEOUT,
            "error_type": c.ERROR_TYPE_TIMEOUT,
            "error_text": (
                f"the load exceeded deferral.{overdue.wait} of the policy; "
                f"its blocks stay pinned until {record.connector} reports the end of the load"
            ),
            "peer": peer.fields(),
            "remote_request_id": record.remote_request_id,
            "attempt": record.present_attempt,
        }
        self._emit("transfer_failure", fields, record.request_id)
        return LoadFailure(record.request_id, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, peer)

    def on_connector_finished(self, request_id: str) -> None:
        """Record that the connector will report a send of a request that is ending."""
        load = self._open.get(request_id)
        if load is not None:
            load.sends = True

    def on_pinned(self, request_id: str, blocks: int) -> None:
        """Record that a request has ended and vLLM keeps its *blocks*."""
        load = self._open[request_id]
        load.blocks, load.since_ns = blocks, time.time_ns()
        self._emit_pinned(request_id, load)

    def forget(self, request_id: str) -> None:
        """Record that the blocks of a request are free, or that it has not ended after all."""
        load = self._open.pop(request_id, None)
        if load is not None and load.since_ns:
            self._emit_pinned(request_id, load, released=True)
            if load.sends:
                if len(self._late_sends) >= SENDS_MAX:
                    del self._late_sends[next(iter(self._late_sends))]
                self._late_sends[request_id] = None
        self.any = bool(self._open or self._late_sends)

    def hide_sends(self, output: Any) -> None:
        """Take the reports of sends of abandoned loads out of a step's ``KVConnectorOutput``."""
        sent = output.finished_sending
        if not sent:
            return
        hidden = self._hidden(sent)
        if hidden:
            output.finished_sending = set(sent) - hidden

    def _hidden(self, sent: Iterable[str]) -> set[str]:
        hidden = set()
        for request_id in sent:
            load = self._open.get(request_id)
            if load is not None:
                load.sends = False
                hidden.add(request_id)
            elif request_id in self._late_sends:
                del self._late_sends[request_id]
                hidden.add(request_id)
        self.any = bool(self._open or self._late_sends)
        return hidden

    def _emit_pinned(self, request_id: str, load: _Abandoned, *, released: bool = False) -> None:
        fields = {
            "channel": c.CHANNEL_KV,
            "peer": load.peer.fields(),
            "blocks": load.blocks,
            "since_time_unix_nano": load.since_ns,
            "released": released,
        }
        self._emit("blocks_pinned", fields, request_id)

    @staticmethod
    def _emit(kind: str, fields: dict[str, Any], request_id: str) -> None:
        if runtime.active:
            runtime.emit_event(kind, fields, component=c.COMPONENT_SCHEDULER, request_id=request_id)
