"""The protocol between an encoder-cache connector and Penstock's scheduler, beyond vLLM's ``ECConnectorBase``.

Any EC connector is instrumented by vLLM's interface alone. One that moves items ahead of scheduling (``ZmqECConnector``) knows
more: which transfers have begun, which failed before a request was scheduled, and from which peer. It reports by these two
protocols, and works without a listener. Nothing here imports vLLM.

On the metadata of a step, beside the connector's own, travel these to the workers (absent: nothing of ours applies):

- ``penstock_items``: what is to be loaded in this step, in the order in which it was allocated, each the plain tuple of an
  :class:`ExternalItem`;
- ``penstock_encodes``: ``dict[str, str]``, the modality of each item that is encoded here in this step;
- ``penstock_checksums``: ``dict[str, int]``, the CRC-32 of each item of the step that is to be compared before it is used;
- ``penstock_enforced``: ``True`` if an item that differs is not to be used; without it that is only reported;
- ``penstock_guarded``: ``True`` if a load that fails is to leave its item out instead of raising: the item gets a
  placeholder, the requests that used it are rewound. Without it a failed load raises, as vLLM's own connectors do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.orders import Drill
    from penstock.instrumentation.vllm.naming import Peer


class ExternalItem(NamedTuple):
    """An item that the workers load in a step.

    Attributes:
        rows: its number of embeddings.
        request_id: the first request that asked for it.
        peer: address of the peer that it came from; empty where that is not known.

    """

    item: str
    rows: int
    modality: str = ""
    request_id: str = ""
    peer: str = ""


@dataclass(frozen=True, slots=True)
class EcTransfer:
    """One attempted move of one item; times are the wall clock in nanoseconds.

    Attributes:
        item: ``mm_hash`` (vLLM's ``MultiModalFeatureSpec.identifier``).
        request_id: the first request that asked for it; empty if none did (a producer's side).
        bytes: that moved.
        ok: whether it arrived whole.
        uncertainty_ns: by how much the end may have been before it was seen; 0 for not at all.

    """

    item: str
    peer: Peer
    start_ns: int
    end_ns: int
    bytes: int
    ok: bool
    request_id: str = ""
    uncertainty_ns: int = 0


@dataclass(frozen=True, slots=True)
class EcFailure:
    """One attempt that went wrong.

    Attributes:
        mode: ``FAILURE_MODE_*``: PROBE, TRANSFER, TIMEOUT, LOAD, EXCEPTION.
        error_type: ``ERROR_TYPE_*``.
        error_class: the exception's class, or empty.
        text: in words, without content of requests.
        start_ns: wall clock at the attempt's beginning; 0 if it is not known.
        rehearsal: a fault drill caused it.
        blameless: the peer answered well; what did not fit was the request's, or is this engine's.
        inconclusive: it says nothing about the peer, which was not asked in this attempt.

    """

    item: str
    mode: int
    error_type: int
    text: str
    peer: Peer | None = None
    request_id: str = ""
    error_class: str = ""
    start_ns: int = 0
    rehearsal: bool = False
    blameless: bool = False
    inconclusive: bool = False


class EcListener(Protocol):
    """Receives what a connector does, on any thread; neither blocks nor raises."""

    def received(self, transfer: EcTransfer) -> None:
        """Record that an item came, or did not."""

    def sent(self, transfer: EcTransfer) -> None:
        """Record that an item was handed out, or could not be."""

    def probed(
        self, item: str, peer: Peer | None, result: int, start_ns: int, end_ns: int, request_id: str
    ) -> None:
        """Record a probe's result, a ``PROBE_RESULT_*``; *request_id* asked."""

    def failed(self, failure: EcFailure) -> None:
        """Record a failed attempt: a probe's error, or a transfer that will be tried again or not at all."""


@runtime_checkable
class EcLoader(Protocol):
    """A connector that moves items ahead of scheduling. All on the scheduler's thread; nothing blocks.

    Of a worker's side only :meth:`observe` is called (a producer reports there what it sends).

    Attributes:
        load_failure_default: what is done about a failed load while no policy says it: ``recompute`` or ``fail``.

    """

    load_failure_default: str

    def observe(self, observer: EcListener) -> None:
        """Report to *observer* from now on; in the scheduler, also leave the handling of failed loads to Penstock."""

    def take_failed_loads(self) -> list[EcFailure]:
        """Return the items whose load was given up since the last call, after all retries; a failed or empty probe is none.

        The connector answers ``has_cache_item`` for them with False for a while (the item is then encoded here).
        """

    def waits_for(self, item: str) -> bool:
        """Return whether *item* is probed, waits for room or is on its way: what ``ensure_cache_available`` returns False for."""

    def transfer_began(self, item: str) -> int | None:
        """Return when the transfer of *item* began (wall clock, ns), None while it has not: it is probed, or waits for room."""

    def peer_of(self, item: str) -> Peer | None:
        """Return the peer that *item* comes from, as far as that is known."""

    def give_up(self, item: str) -> None:
        """Stop moving *item* and do not load it again for a while: it is bad, or it took too long."""

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, transfers that have begun and not ended, wall clock of the oldest's start); from any thread."""


@runtime_checkable
class EcPeerSource(Protocol):
    """A connector that can be kept from a peer before it asks, on the scheduler's thread, right before ``ensure_cache_available``.

    The peers of any other connector cannot be quarantined. What became of an attempt is reported to its ``EcListener``, with the
    peer, before :meth:`EcLoader.waits_for` returns False for the item.
    """

    def candidates(self, request: Any, feature: Any) -> tuple[str, ...]:
        """Return the addresses that would be asked for the item of *feature*, the one that the request names first.

        Empty if none would be: the item is there or on its way, or is not to be loaded. A peer that has not answered yet may stay one.
        """

    def keep_to(self, request: Any, feature: Any, peers: tuple[str, ...]) -> None:
        """Ask only these of the candidates in the call that follows; with none, do without the item in this step."""

    def connected(self) -> frozenset[str]:
        """Return the addresses of the peers that have answered on a connection that stands; from any thread."""


@runtime_checkable
class EcChecksums(Protocol):
    """A connector that knows the checksums of the items that it moves, on the scheduler's thread."""

    def checksum(self, item: str) -> int | bytes | None:
        """Return the CRC-32 of the bytes of *item*, or its fingerprint, as its producer has computed it; None if it is not known."""


@runtime_checkable
class EcRehearsal(Protocol):
    """A connector that rehearses probes and transfers that fail or are slow, in the scheduler."""

    def rehearse(self, hit: Callable[[int, str], Drill | None]) -> None:
        """Ask *hit* once for each attempt, on any thread: the mode (``FAILURE_MODE_*``, ``SLOW``) and the peer's address.

        A drill that it returns is to be carried out, and reported as a rehearsal.
        """

    def rehearsed(self, item: str) -> bool:
        """Return whether a drill makes *item* late."""
