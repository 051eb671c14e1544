"""The mixins over an ``ECMooncakeWorker`` and three of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec.mooncake.names import PEER, peer_to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.instrumentation.vllm.ec.mooncake.receiver import MooncakeReceiver
    from penstock.instrumentation.vllm.ec.mooncake.sender import SentPushes
    from penstock.instrumentation.vllm.naming import Failure, Peer

_GUARD = guard("ec_mooncake")
_RESERVE: Final = "reserve"
_RESERVE_BATCH: Final = "reserve_batch"


class MooncakeEcWorkerMixin:
    """Over the worker: loads on its own thread, reservations on the control server's."""

    _penstock_receiver: MooncakeReceiver | None = None
    _penstock_snapshot: str = ""

    # Set by vLLM's ECMooncakeWorker.
    _completed_loads: set[str]
    _failed_loads: set[str]
    _reservations: Any

    def _reserve_push_destination(self, payload: dict[str, Any]) -> dict[str, Any]:
        upstream: Any = super()
        receiver = self._penstock_receiver
        try:
            answer: dict[str, Any] = upstream._reserve_push_destination(payload)
        except Exception as error:
            if receiver is not None:
                with _GUARD:
                    receiver.on_refused(payload, error)
            raise
        if receiver is not None:
            with _GUARD:
                receiver.on_reserved(payload, answer)
        return answer

    def _push_status(self, transfer_id: str) -> dict[str, Any] | None:
        upstream: Any = super()
        status: dict[str, Any] | None = upstream._push_status(transfer_id)
        receiver = self._penstock_receiver
        if receiver is not None and status is not None:
            with _GUARD:
                return {**status, **receiver.status(transfer_id)}
        return status

    def start_load_caches(self, metadata: Any, encoder_cache: Any, **kwargs: Any) -> None:
        """Hand the step's items over and report them; a fault drill takes some of them back."""
        upstream: Any = super()
        receiver = self._penstock_receiver
        if receiver is None or not metadata.loads:
            upstream.start_load_caches(metadata, encoder_cache, **kwargs)
            return
        held: frozenset[str] = frozenset()
        known = frozenset(self._failed_loads)
        with _GUARD:
            held = frozenset(spec.mm_hash for spec in metadata.loads if spec.mm_hash in encoder_cache)
            receiver.before_load(metadata)
        upstream.start_load_caches(metadata, encoder_cache, **kwargs)
        hit: Mapping[str, Failure] = {}
        with _GUARD:
            hit = receiver.rehearse(metadata, held, encoder_cache, self._completed_loads)
        with _GUARD:
            if hit:
                self._failed_loads.update(hit)
                # Else the pool would keep them: it hears of what leaves vLLM's cache, not of what never was in it.
                self._reservations.retire_stale(encoder_cache, list(hit))
            receiver.after_load(metadata, self._failed_loads - known, hit)

    def close(self) -> None:
        """Stop contributing to the snapshot."""
        upstream: Any = super()
        with _GUARD:
            runtime.snapshots.remove(self._penstock_snapshot)
        upstream.close()


class ReservationsMixin:
    """Over a worker's ``ConsumerReservationManager``; some of its methods run under vLLM's lock of the receive pool."""

    _penstock_receiver: MooncakeReceiver | None = None

    def complete(self, transfer_id: str, reservation_id: str) -> tuple[bool, bool]:
        """Record the item as there before its memory may be given back, which vLLM does at once if the request is gone."""
        upstream: Any = super()
        receiver = self._penstock_receiver
        if receiver is not None:
            with _GUARD:
                if self._penstock_awaits(transfer_id, reservation_id):
                    receiver.on_written(transfer_id)
        result: tuple[bool, bool] = upstream.complete(transfer_id, reservation_id)
        return result

    def cancel(
        self, transfer_id: str, reservation_id: str, abandon: bool = False, refresh: bool = False
    ) -> bool:
        """Forget a reservation that its producer renews."""
        upstream: Any = super()
        receiver = self._penstock_receiver
        if receiver is not None and refresh:
            with _GUARD:
                receiver.on_replaced(transfer_id)
        return bool(upstream.cancel(transfer_id, reservation_id, abandon, refresh))

    def _terminate(self, record: Any, state: Any) -> None:
        upstream: Any = super()
        upstream._terminate(record, state)
        receiver = self._penstock_receiver
        if receiver is not None:
            with _GUARD:
                receiver.on_released(record.transfer_id)

    def _defer(self, record: Any, state: Any) -> None:
        upstream: Any = super()
        upstream._defer(record, state)
        receiver = self._penstock_receiver
        if receiver is not None and state.name == "EXPIRE_PENDING":
            with _GUARD:
                receiver.on_overdue(record.transfer_id)

    def _penstock_awaits(self, transfer_id: str, reservation_id: str) -> bool:
        """Return whether vLLM will take that completion."""
        records: Any = self
        record = records._records.get(transfer_id)
        return record is not None and record.reservation_id == reservation_id and not record.writer_id


class PushManagerMixin:
    """Over a worker's ``ProducerPushManager``; both methods run under its lock."""

    _penstock_sent: SentPushes | None = None

    def _transition(self, record: Any, state: Any) -> None:
        upstream: Any = super()
        upstream._transition(record, state)
        sent = self._penstock_sent
        if sent is not None:
            with _GUARD:
                sent.on_state(record)

    def _set_error(self, record: Any, error: BaseException) -> None:
        upstream: Any = super()
        first = record.error is None
        upstream._set_error(record, error)
        sent = self._penstock_sent
        if sent is not None and first:
            with _GUARD:
                sent.on_error(record, error)


class ControlClientMixin:
    """Over a worker's ``ControlClient``: a producer names itself where it reserves."""

    _penstock_name: Peer | None = None

    def request(self, addr: str, payload: dict[str, Any]) -> Any:
        """Send a request; a consumer without Penstock ignores the name."""
        upstream: Any = super()
        name = self._penstock_name
        if name is not None and runtime.active:
            with _GUARD:
                payload = _named(payload, peer_to_wire(name))
        return upstream.request(addr, payload)


def _named(payload: dict[str, Any], name: list[str]) -> dict[str, Any]:
    """Return *payload* with the producer's name on each of its reservations."""
    if payload.get("op") == _RESERVE:
        return {**payload, PEER: name}
    if payload.get("op") == _RESERVE_BATCH:
        return {**payload, "items": [{**item, PEER: name} for item in payload["items"]]}
    return payload
