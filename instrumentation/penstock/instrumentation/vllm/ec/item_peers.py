"""The peers that the encoder outputs of one scheduler come from: who may be asked, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.admission import INCONCLUSIVE
from penstock.instrumentation.vllm.ec.observer import EcResults
from penstock.instrumentation.vllm.ec.protocol import EcLoader, EcPeerSource
from penstock.instrumentation.vllm.naming import UNKNOWN, Peer
from penstock.rules import PeerFailure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.instrumentation.vllm.admission import PeerGate
    from penstock.instrumentation.vllm.ec.observer import EcResult
    from penstock.instrumentation.vllm.requests import Cause

_EC: Final = c.CHANNEL_EC


@dataclass(frozen=True, slots=True)
class _Probe:
    """The attempt that decides about a half-open peer, and the number by which it does."""

    number: int
    item: str
    request_id: str


class ItemPeers:
    """The gate of one scheduler as its encoder outputs pass it; on its thread, inside a step.

    A connector may ask several peers for one item. It is kept from those that are cut off; only where none is left to ask, the
    item cannot be had. The first request behind the time of a quarantine is the probe, with all its items.

    Attributes:
        results: what became of attempts; None where the connector cannot be kept from a peer.

    """

    def __init__(self, gate: PeerGate, connector: Any) -> None:
        """Keep *connector*, or what is beside it, from the peers that *gate* has cut off."""
        self._gate = gate
        self._source: EcPeerSource | None = connector if isinstance(connector, EcPeerSource) else None
        self._loader: EcLoader | None = connector if isinstance(connector, EcLoader) else None
        self.results = EcResults() if self._source is not None else None
        self._probes: dict[str, _Probe] = {}  # by address
        self._local: dict[str, set[str]] = {}  # by request

    @property
    def in_use(self) -> bool:
        """Whether a peer of this connector can be cut off now."""
        return self._source is not None and self._gate.in_use

    def connected(self) -> Iterable[str]:
        """Return the peers to which a connection stands; from any thread."""
        return self._source.connected() if self._source is not None else ()

    def keep_out(self, request: Any, features: Mapping[str, Any]) -> dict[str, str]:
        """Keep the connector from asking peers that are cut off for *features*, given by item.

        Returns the items for which no peer is left to ask, each with one that is cut off.
        """
        source = self._source
        refused: dict[str, str] = {}
        if source is None:
            return refused
        local = self._local.get(request.request_id, ())
        for item, feature in features.items():
            candidates = source.candidates(request, feature)
            if not candidates:
                continue
            admitted: tuple[str, ...] = ()
            if item not in local:
                admitted = tuple(each for each in candidates if self._admit(each, request.request_id, item))
                if not admitted:
                    refused[item] = candidates[0]
            if len(admitted) < len(candidates):
                source.keep_to(request, feature, admitted)
        return refused

    def stay_local(self, request_id: str, items: Iterable[str]) -> None:
        """Let no peer be asked for these *items* for a request: it was decided that they are encoded here."""
        self._local.setdefault(request_id, set()).update(items)

    def wait_ns(self, address: str) -> int | None:
        """Return in how many nanoseconds a peer may be asked again; None if no time ends its quarantine."""
        return self._gate.wait_ns(address)

    def cause(self, address: str) -> Cause:
        """Return the last failure of a peer; one without a mode where none is known, as after an order."""
        return replace(self._gate.cause(address), peer=Peer(address))

    def on_load_failed(self, item: str, cause: Cause) -> None:
        """Count an item against the peer that it came from: the workers could not use it."""
        if self._source is not None and cause.peer is not None and cause.peer.address != UNKNOWN:
            self._count(item, cause.peer, cause)

    def before_step(self) -> None:
        """Count what has ended since the last step; a probe that ended without a result makes room for the next."""
        if self.results is None or not (self._probes or self.results):
            return
        # First: the result of what has ended by now is in.
        loader = self._loader
        ended = [
            probe
            for probe in self._probes.values()
            if loader is not None and not loader.waits_for(probe.item)
        ]
        for result in self.results.drain():
            self._apply(result)
        self._abandon(ended)

    def on_finished(self, request_id: str) -> None:
        """Forget a request; a probe that has no result yet makes room for the next."""
        self._local.pop(request_id, None)
        if self._probes:
            with runtime.policy.step():
                self._abandon([each for each in self._probes.values() if each.request_id == request_id])

    def _admit(self, address: str, request_id: str, item: str) -> bool:
        probe = self._probes.get(address)
        if probe is not None and probe.request_id == request_id:
            return True
        admitted = self._gate.admit(Peer(address), _EC)
        if admitted.probe:
            self._probes[address] = _Probe(admitted.probe, item, request_id)
        return admitted.remote

    def _apply(self, result: EcResult) -> None:
        if result.cause is not None:
            self._count(result.item, result.peer, result.cause)
        elif result.arrived:
            self._report(result.item, result.peer, None)
        elif self._is_probe(result.item, result.peer.address):
            # An answer ends the silence of a peer, and says nothing about its transfers.
            silent = self._gate.cause(result.peer.address).mode in (0, c.FAILURE_MODE_PROBE)
            self._report(result.item, result.peer, None if silent else INCONCLUSIVE)

    def _count(self, item: str, peer: Peer, cause: Cause) -> None:
        self._gate.remember(peer.address, cause)
        self._report(item, peer, PeerFailure(cause.mode, cause.error_type, cause.rehearsal))

    def _report(self, item: str, peer: Peer, failure: PeerFailure | None) -> None:
        number = 0
        if self._is_probe(item, peer.address):
            number = self._probes.pop(peer.address).number
        self._gate.report(peer.address, peer.engine_id, failure, _EC, number)

    def _is_probe(self, item: str, address: str) -> bool:
        probe = self._probes.get(address)
        return probe is not None and probe.item == item

    def _abandon(self, probes: Iterable[_Probe]) -> None:
        for address in [address for address, each in self._probes.items() if each in probes]:
            self._gate.report(address, "", INCONCLUSIVE, _EC, self._probes.pop(address).number)
