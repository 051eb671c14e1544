"""The protocol between an encoder-cache connector and Penstock's scheduler, beyond vLLM's ``ECConnectorBase``.

Any EC connector is instrumented by vLLM's interface alone. One that moves items ahead of scheduling (``ZmqECConnector``) knows
more: which transfers have begun, which failed before a request was scheduled, and from which peer. It reports by these two
protocols, and works without a listener. Nothing here imports vLLM.

On the metadata of a step, beside the connector's own, travel these to the workers (absent: nothing of ours applies):

- ``penstock_items``: what is to be loaded in this step, in the order in which it was allocated, each the plain tuple of an
  :class:`ExternalItem`;
- ``penstock_encodes``: ``dict[str, str]``, the modality of each item that is encoded here in this step;
- ``penstock_guarded``: ``True`` if a load that fails is to leave its item out instead of raising: the item gets a
  placeholder, the requests that used it are rewound. Without it a failed load raises, as vLLM's own connectors do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.naming import Peer


class ExternalItem(NamedTuple):
    """An item that the workers load in a step; *rows* is its number of embeddings, *request_id* the first that asked for it."""

    item: str
    rows: int
    modality: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class EcTransfer:
    """One attempted move of one item; times are the wall clock in nanoseconds.

    Attributes:
        item: ``mm_hash`` (vLLM's ``MultiModalFeatureSpec.identifier``).
        request_id: the first request that asked for it; empty if none did (a producer's side).
        bytes: that moved.
        ok: whether it arrived whole.

    """

    item: str
    peer: Peer
    start_ns: int
    end_ns: int
    bytes: int
    ok: bool
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class EcFailure:
    """One attempt that went wrong.

    Attributes:
        mode: ``FAILURE_MODE_*``: PROBE, TRANSFER, TIMEOUT, LOAD, EXCEPTION.
        error_type: ``ERROR_TYPE_*``.
        error_class: the exception's class, or empty.
        text: in words, without content of requests.
        start_ns: wall clock at the attempt's beginning; 0 if it is not known.

    """

    item: str
    mode: int
    error_type: int
    text: str
    peer: Peer | None = None
    request_id: str = ""
    error_class: str = ""
    start_ns: int = 0


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
