"""Leases and handshakes of a NIXL worker, and what the sides of a NIXL connector tell of themselves.

Until 0.26: the scheduler's method that leaves out what is not exchanged has another name (:func:`block_clipper`).
Until 0.26: a pushing NIXL worker's writer shakes hands itself and waits for it, and only logs an error
(:class:`WriterHandshakes`).
Until 0.27: the sides do not say in which direction they move KV; their classes do (:func:`transfer_mode`).
Until 0.28 the compatibility hash also has whether layers share blocks; until 0.27 it lacks speculation and direction
(:func:`open_factors`, :func:`speculative_factors`).
Until 0.29: all groups of the KV cache are transferred, and nothing says which layer is in which (:func:`layer_groups`).
Until 0.29: a worker's KV cache lies in memory of one type (:func:`mixes_memory_types`).
Until 0.30: a NIXL worker ends expired leases inside of what tells its results, not in ``_reap_expired_send_leases``
(:class:`SendLeases`).
"""

from __future__ import annotations

import inspect
import itertools
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.compat.difference import Difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GUARD = guard("nixl")

# Seconds. What runs out while a step's results are put together is looked at, too.
_SOON: Final = 5.0


class SendLeases(Difference):
    """Tells which leases ended by their time: those that were due when the readers' messages were in, and are gone afterwards."""

    # Set by vLLM's worker: when each lease ends, by request; ends by time.perf_counter().
    _reqs_to_send: dict[str, float]

    # By request, as above; on the worker's thread.
    _penstock_due: tuple[tuple[str, float], ...] = ()

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* is a NIXL worker without such a method."""
        return hasattr(owner, "_get_new_notifs") and not hasattr(owner, "_reap_expired_send_leases")

    def _penstock_on_expired(self, request_ids: Sequence[str]) -> None:
        """Take the requests whose leases have ended by their time; Penstock's mixin does."""

    def _get_new_notifs(self) -> Any:
        """Note the leases that are due, behind the messages that vLLM takes in before it ends them."""
        upstream: Any = super()
        ended_by_readers = upstream._get_new_notifs()
        if self._reqs_to_send:
            with _GUARD:
                # The oldest come first, and vLLM stops at the first that is not due.
                until = time.perf_counter() + _SOON
                self._penstock_due = tuple(
                    itertools.takewhile(lambda lease: lease[1] <= until, self._reqs_to_send.items())
                )
        return ended_by_readers

    def get_transfer_results(self, *args: Any, **kwargs: Any) -> Any:
        """Look which leases have ended."""
        upstream: Any = super()
        results = upstream.get_transfer_results(*args, **kwargs)
        self._penstock_look_at_leases()
        return results

    def get_finished(self, *args: Any, **kwargs: Any) -> Any:
        """Look which leases have ended, until 0.29."""
        upstream: Any = super()
        results = upstream.get_finished(*args, **kwargs)
        self._penstock_look_at_leases()
        return results

    def _penstock_look_at_leases(self) -> None:
        due, self._penstock_due = self._penstock_due, ()
        if not due:
            return
        with _GUARD:
            now = time.perf_counter()
            expired = [
                request_id for request_id, end in due if end <= now and request_id not in self._reqs_to_send
            ]
            if expired:
                self._penstock_on_expired(sorted(expired))


class _HandshakeFailure(threading.local):
    """What this thread's handshake failed with, while somebody asks."""

    asked = False
    error: Exception | None = None


class WriterHandshakes(Difference):
    """Shows such a handshake as one that others wait for, as ``_ensure_handshake`` of a newer vLLM does."""

    # Set by vLLM's worker: its peers' agents, by engine.
    _remote_agents: dict[str, Any]

    _penstock_failure = _HandshakeFailure()

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* is a NIXL worker with such a writer."""
        return hasattr(owner, "_ensure_d_handshake")

    def _penstock_join_handshake(
        self, engine_id: str, host: str, port: int, ended: Any, queued_ns: int
    ) -> None:
        """Take a handshake with its future; Penstock's mixin does."""

    def _ensure_d_handshake(
        self, decode_engine_id: str, decode_host: str, decode_port: int, *args: Any, **kwargs: Any
    ) -> Any:
        upstream: Any = super()
        if decode_engine_id in self._remote_agents:
            return upstream._ensure_d_handshake(decode_engine_id, decode_host, decode_port, *args, **kwargs)
        failure, ended = self._penstock_failure, Future[None]()
        with _GUARD:
            self._penstock_join_handshake(decode_engine_id, decode_host, decode_port, ended, time.time_ns())
        failure.asked = True
        try:
            return upstream._ensure_d_handshake(decode_engine_id, decode_host, decode_port, *args, **kwargs)
        finally:
            error, failure.asked, failure.error = failure.error, False, None
            with _GUARD:
                if error is None:
                    ended.set_result(None)
                else:
                    ended.set_exception(error)

    def _nixl_handshake(self, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        try:
            return upstream._nixl_handshake(*args, **kwargs)
        except Exception as error:
            if self._penstock_failure.asked:
                self._penstock_failure.error = error
            raise


_OPEN_FACTORS: Final[Mapping[str, Sequence[Any]]] = {
    "transfer_mode": ("pull", "push"),
    "cross_layers_blocks": (False, True),
}


def open_factors() -> Mapping[str, Sequence[Any]]:
    """Return the factors that a configuration does not tell, and the few values of each; without the attention backend."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

    hashed = inspect.signature(metadata.compute_nixl_compatibility_hash).parameters
    return {name: values for name, values in _OPEN_FACTORS.items() if name in hashed}


def speculative_factors(config: Any) -> Mapping[str, Any]:
    """Return what the hash has of speculative decoding, by a ``VllmConfig``."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

    factors_of = getattr(metadata, "_get_speculative_compatibility_factors", None)
    return {} if factors_of is None else {"speculative_config": factors_of(config)}


_CLIPPERS: Final = ("get_exchange_clipped_blocks", "get_sw_clipped_blocks")


def block_clipper(scheduler: Any) -> Any:
    """Return what a NIXL connector's scheduler uses to name the blocks that it offers; None of another's."""
    return next((found for name in _CLIPPERS if (found := getattr(scheduler, name, None)) is not None), None)


def transfer_mode(side: Any) -> str:
    """Return ``pull`` or ``push`` of a NIXL connector's scheduler or worker; empty for another's."""
    told = getattr(side, "_TRANSFER_MODE", None)
    if told is not None:
        return str(told)
    names = [each.__name__ for each in type(side).__mro__ if ".kv_connector.v1.nixl." in each.__module__]
    if not names:
        return ""
    return "push" if any(name.startswith("NixlPush") for name in names) else "pull"


def layer_groups(config: Any) -> Mapping[str, int]:
    """Return the group of each layer whose blocks are transferred, by a ``KVCacheConfig``."""
    groups: Mapping[str, int] | None = getattr(config, "transfer_group_index_by_layer", None)
    if groups is not None:
        return groups
    return {name: index for index, group in enumerate(config.kv_cache_groups) for name in group.layer_names}


def mixes_memory_types(worker: Any) -> bool:
    """Return whether a NIXL worker's KV cache lies in memory of several types, the device's and the host's."""
    return bool(getattr(worker, "_mixed_mem_types", False))
