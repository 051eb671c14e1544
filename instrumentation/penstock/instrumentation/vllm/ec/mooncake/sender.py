"""A producer's worker: what it writes into the memory of consumers, and the pushes that fail."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec import EcFailure, EcObserver, EcTransfer
from penstock.instrumentation.vllm.ec.mooncake.receiver import add_in_flight
from penstock.instrumentation.vllm.naming import Peer, cut, error_type_of, peers

if TYPE_CHECKING:
    from penstock.proto.v1.snapshot_pb2 import Snapshot

# By the state of the push in which the error came.
_MODES: Final = {
    "WAITING_INPUTS": c.FAILURE_MODE_SETUP,
    "WRITING": c.FAILURE_MODE_TRANSFER,
    "NOTIFYING": c.FAILURE_MODE_NOTIFICATION,
    "CANCEL_PENDING": c.FAILURE_MODE_RELEASE,
}
_ENDS: Final = frozenset({"DONE", "CANCELLED", "FAILED"})

# All that zmq says of a consumer that did not answer in time; vLLM keeps the text only.
_SILENCE: Final = "resource temporarily unavailable"


class SentPushes:
    """The pushes of one producer's worker; called under the lock of vLLM's ``ProducerPushManager``."""

    def __init__(self, observer: EcObserver) -> None:
        """Report to *observer*."""
        self._observer = observer
        self._writing: dict[str, tuple[Peer, int]] = {}

    def on_state(self, record: Any) -> None:
        """Record the state that a push has just entered; its end is reported if anything was to be written."""
        name, spec = record.state.name, record.spec
        if name == "WRITING":
            self._writing[spec.transfer_id] = (consumer_of(spec), time.time_ns())
            return
        if name not in _ENDS:
            return
        began = self._writing.pop(spec.transfer_id, None)
        shards = sum(map(_is_written, record.reservations))
        if began is None or not shards:
            return
        peer, start_ns = began
        ok = name == "DONE"
        nbytes = spec.nbytes * shards if ok else 0
        self._observer.sent(
            EcTransfer(spec.mm_hash, peer, start_ns, time.time_ns(), nbytes, ok, request_id=spec.request_id)
        )

    def on_error(self, record: Any, error: BaseException) -> None:
        """Report why a push failed; the state it was in says what."""
        spec = record.spec
        mode = _MODES.get(record.state.name, c.FAILURE_MODE_EXCEPTION)
        text = cut(str(error))
        silent = _SILENCE in text.lower()
        began = self._writing.get(spec.transfer_id)
        self._observer.failed(
            EcFailure(
                spec.mm_hash,
                mode,
                c.ERROR_TYPE_TIMEOUT if silent else error_type_of(error, mode, text),
                text,
                peer=consumer_of(spec),
                request_id=spec.request_id,
                error_class=type(error).__name__,
                start_ns=began[1] if began is not None else 0,
            ),
            direction=c.DIRECTION_SEND,
        )

    def fill(self, snapshot: Snapshot) -> None:
        """Add what is being written; on the exporter's thread."""
        add_in_flight(snapshot, self._observer, self._writing.copy().values())


def consumer_of(spec: Any) -> Peer:
    """Return the consumer of a push: the address of its control server, which a request named."""
    host, _, port = str(spec.consumer_zmq).rpartition("//")[2].rpartition(":")
    return peers.named(host.removeprefix("[").removesuffix("]"), port, "")


def _is_written(shard: Any) -> bool:
    """Return whether a shard's reservation is one to write to; as vLLM's ``_push_batch`` says."""
    return not shard.get("cached") and not shard.get("cancelled") and bool(shard.get("write", True))
