"""The peers that the requests of one scheduler load their KV from: who may, what became of it, and which compute here instead."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.admission import INCONCLUSIVE
from penstock.instrumentation.vllm.compat import child_connectors
from penstock.instrumentation.vllm.naming import UNKNOWN, Peer, peers
from penstock.instrumentation.vllm.requests import Cause
from penstock.rules import PeerFailure

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.admission import PeerGate
    from penstock.instrumentation.vllm.kv.reflexes import KvReflexes
    from penstock.instrumentation.vllm.messages import Culprit
    from penstock.instrumentation.vllm.requests import RequestRecord
    from penstock.rules import Admit

_KV: Final = c.CHANNEL_KV


class LoadAdmission(Enum):
    """What a request may do that could load from a peer."""

    AS_ASKED = "as the connector answered"
    LOCAL = "compute its prompt here"
    FAIL = "fail, at the end of this step"


class RequestPeers:
    """The gate of one scheduler as its KV loads pass it; on its thread, inside a step."""

    def __init__(self, gate: PeerGate, reflexes: KvReflexes) -> None:
        """Report to *gate* and obey it; tell *reflexes* what loads take."""
        self._gate = gate
        self._reflexes = reflexes
        self._loading: dict[str, str] = {}

    def admit(self, record: RequestRecord) -> Admit:
        """Decide whether a request may load from its peer now; asked again while it cannot be scheduled, a probe stays one."""
        admitted = self._gate.admit(record.peer or Peer(), _KV)
        record.probe = admitted.probe or record.probe
        return replace(admitted, remote=True) if record.probe else admitted

    @property
    def has_open(self) -> bool:
        """Whether a peer is cut off."""
        return bool(self._gate.open)

    def is_open(self, address: str) -> bool:
        """Return whether a peer is cut off."""
        return address in self._gate.open

    def wait_ns(self, peer: Peer | None) -> int | None:
        """Return in how many nanoseconds a load from a peer may be admitted again; None if no time ends its quarantine."""
        return self._gate.wait_ns((peer or Peer()).address)

    def cause(self, address: str) -> Cause:
        """Return the last failure of a peer; one without a mode where none is known, as after an order."""
        return self._gate.cause(address)

    def on_load_begun(self, record: RequestRecord) -> None:
        """Record that a request loads from its peer; of a P2P tier it loads what is in this machine's memory by then."""
        if record.peer is not None and not record.by_tier:
            self._loading[record.request_id] = record.peer.address

    def on_load_failed(self, record: RequestRecord) -> None:
        """Count the first failure of a load."""
        failure = record.failure
        address = self._loading.pop(record.request_id, "")
        if failure is None:
            return
        if failure.peer.address != UNKNOWN:
            address = failure.peer.address
        if record.given_up:
            # Our own impatience is nothing against the peer, but it was as slow as this, unless others held it up.
            if failure.mode != c.FAILURE_MODE_COLLATERAL:
                self._reflexes.on_load_ended(record, address)
            self._report(record, address, failure.peer.engine_id, INCONCLUSIVE)
            return
        if failure.mode != c.FAILURE_MODE_COLLATERAL:
            self._gate.remember(address, Cause(failure.mode, failure.error_type, failure.rehearsal))
        self._report(
            record,
            address,
            failure.peer.engine_id,
            PeerFailure(failure.mode, failure.error_type, failure.rehearsal),
        )
        culprit = failure.culprit
        if culprit is not None and culprit.mode:
            self._blame(culprit, rehearsal=failure.rehearsal)

    def _blame(self, culprit: Culprit, *, rehearsal: bool) -> None:
        """Count against a peer what it did to a load from another one."""
        peer, failure = culprit.peer, PeerFailure(culprit.mode, culprit.error_type, rehearsal)
        if not self._gate.cause(peer.address).mode:
            self._gate.remember(peer.address, Cause(culprit.mode, culprit.error_type, rehearsal))
        self._gate.report(peer.address, peer.engine_id, failure, _KV)

    def on_load_ended(self, record: RequestRecord) -> None:
        """Count a load that succeeded."""
        address = self._loading.pop(record.request_id, "")
        if address and record.peer is not None:
            if self._reflexes.active:
                self._reflexes.on_load_ended(record, address)
            self._report(record, address, record.peer.engine_id, None)

    def on_promotion(self, record: RequestRecord | None, peer: Peer, failure: PeerFailure | None) -> None:
        """Count what a P2P tier got from *peer*, or its *failure*; the record is None if the request is gone."""
        if failure is not None and failure.mode != c.FAILURE_MODE_COLLATERAL:
            self._gate.remember(peer.address, Cause(failure.mode, failure.error_type))
        if record is not None:
            self._report(record, peer.address, peer.engine_id, failure)
        else:
            self._gate.report(peer.address, peer.engine_id, failure, _KV)

    def on_finished(self, record: RequestRecord) -> None:
        """Forget a request; a probe that ended without a result makes room for the next."""
        address = self._loading.pop(record.request_id, "") or (record.peer or Peer()).address
        if record.probe:
            with runtime.policy.step():
                self._report(record, address, "", INCONCLUSIVE)

    def drop_heartbeats(self, metadata: Any) -> None:
        """Remove the heartbeats to peers that are cut off from a step's *metadata*: each would start a handshake, on the only thread for it.

        A peer that a load still reads from keeps them, because its lease must not run out under the read.
        """
        beats = getattr(metadata, "heartbeat_by_engine", None)
        if not beats or not self._gate.open:
            return
        silent = self._gate.open.difference(self._loading.values())
        metadata.heartbeat_by_engine = {
            engine_id: beat
            for engine_id, beat in beats.items()
            if peers.address(beat.host, beat.port) not in silent
        }

    def _report(
        self, record: RequestRecord, address: str, engine_id: str, failure: PeerFailure | None
    ) -> None:
        probe, record.probe = record.probe, 0
        self._gate.report(address, engine_id, failure, _KV, probe)


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
