"""What a worker reports to the scheduler about a step: it travels as the connector's own worker metadata.

Of KV loads and saves in ``KVConnectorOutput.kv_connector_worker_meta``, of encoder outputs in
``ECConnectorOutput.ec_connector_worker_meta``. vLLM pickles it in the worker, combines the ranks' with ``aggregate`` and hands it to
the scheduler. A connector that uses the field itself keeps its metadata as *inner*.

A *digest* of a KV transfer is eight bytes for each block and KV head, over all layers of a KV cache group
(``kv/integrity/block_digests.py``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeVar

from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.instrumentation.vllm.messages.transfers import BrokenBlocks, FinishedTransfer
    from penstock.instrumentation.vllm.naming import Failure, Peer


@dataclass(frozen=True, slots=True)
class GroupBlocks:
    """Blocks of one KV cache group in the order of the tokens; only the first *tail* tokens of the last one are valid."""

    blocks: tuple[int, ...]
    tail: int


@dataclass(frozen=True, slots=True)
class GroupDigest:
    """The sender's digests of one KV cache group.

    Attributes:
        blocks: the blocks that the sender offers.
        tail: valid tokens of the last one.
        covered: the last so many of them have a digest.
        digests: little-endian, by block, then by KV head.

    """

    blocks: int
    tail: int
    covered: int
    digests: bytes


@dataclass(frozen=True, slots=True)
class TransferDigest:
    """What the sender of a request's KV has computed of it, for all of the model's *heads*."""

    block_size: int
    heads: int
    groups: tuple[GroupDigest, ...]


@dataclass(frozen=True, slots=True)
class DigestOrder:
    """Compute the digests of a request whose prefill ends in this step; *number*: unlike that of any other order."""

    request_id: str
    groups: tuple[GroupBlocks, ...]
    number: int = 0


@dataclass(frozen=True, slots=True)
class RankDigest:
    """The digests that one rank has computed of its own *heads*, numbers among the *total* ones; *problem*: why there are none.

    *number* is that of the order.
    """

    request_id: str
    block_size: int = 0
    total: int = 0
    heads: tuple[int, ...] = ()
    groups: tuple[bytes, ...] = ()
    problem: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class VerifyOrder:
    """Compare what a load brings with the sender's digest; *enforce*: a mismatch makes the load fail."""

    request_id: str
    digest: TransferDigest
    enforce: bool


@dataclass(frozen=True, slots=True)
class CheckedLoad:
    """What one rank has found: how many blocks it received, compared and found different; *reason*: why not all were compared."""

    request_id: str
    transferred: int
    compared: int
    mismatched: int
    reason: str = ""


T = TypeVar("T")
REASONS_MAX: Final = 4_096
"""Reasons that wait for the scheduler's next step."""


@dataclass(frozen=True, slots=True)
class RankReport(Generic[T]):
    """One step of one rank, or of several that were aggregated. All fields but *inner* are tuples.

    Attributes:
        failures: loads that failed, in the order in which they did.
        inner: the connector's own metadata.

    """

    failures: tuple[T, ...] = ()
    inner: Any = field(default=None, kw_only=True)

    def __bool__(self) -> bool:
        return True

    def aggregate(self, other: Any) -> Self:
        """Combine with another rank's; the connectors' own are combined by themselves."""
        theirs = other if isinstance(other, type(self)) else type(self)(inner=other)
        if self.inner is None or theirs.inner is None:
            inner = self.inner if theirs.inner is None else theirs.inner
        else:
            inner = self.inner.aggregate(theirs.inner)
        tuples = {
            each.name: getattr(self, each.name) + getattr(theirs, each.name)
            for each in fields(self)
            if each.name != "inner"
        }
        return type(self)(inner=inner, **tuples)


class LoadReason(NamedTuple):
    """What one rank's connector knows about a failed load: ``FAILURE_MODE_*``, ``ERROR_TYPE_*``, class and text of the error."""

    request_id: str
    rank: int
    mode: int
    error_type: int
    error_class: str = ""
    error_text: str = ""


class LoadFailureReasons:
    """The reasons of one worker's connector: noted on any thread, drained on the worker's."""

    def __init__(self, rank: int) -> None:
        """Record what happens on *rank*."""
        self._rank = rank
        self._noted: deque[LoadReason] = deque()

    def __bool__(self) -> bool:
        return bool(self._noted)

    def note(self, request_id: str, failure: Failure) -> None:
        """Record why the load of a request failed, before the connector reports that it did."""
        if len(self._noted) >= REASONS_MAX:
            runtime.emitter.drops.add("queue_full", "event")
            return
        self._noted.append(
            LoadReason(
                request_id,
                self._rank,
                failure.mode,
                failure.error_type,
                failure.error_class,
                failure.error_text,
            )
        )

    def drain(self) -> tuple[LoadReason, ...]:
        """Return what was noted, once."""
        return tuple(self._noted.popleft() for _ in range(len(self._noted)))


@dataclass(frozen=True, slots=True)
class Culprit:
    """The peer whose failure made a load from another one fail.

    *mode* (``FAILURE_MODE_*``) and *error_type* (``ERROR_TYPE_*``) are what counts against it, 0 for nothing.
    """

    peer: Peer
    mode: int = 0
    error_type: int = 0


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A load of a request that failed on one rank: ``FAILURE_MODE_*``, ``ERROR_TYPE_*`` and the peer.

    *rehearsal*: a fault drill caused it. *culprit*: of mode ``collateral``, where it is known. *given_up*: by order of a reflex.
    """

    request_id: str
    mode: int
    error_type: int
    peer: Peer
    rank: int = 0
    rehearsal: bool = False
    culprit: Culprit | None = None
    given_up: bool = False


class Misread(NamedTuple):
    """A request whose blocks a rank has read from *peer*, although it names *named*: both have one engine id.

    *owner*: ``ADDRESS_OWNER_*``, who answers there; ``SAME`` takes back what was reported before.
    """

    request_id: str
    peer: Peer
    named: Peer
    owner: int


@dataclass(frozen=True, slots=True)
class WorkerReport(RankReport[LoadFailure]):
    """One step of one rank, or of several that were aggregated.

    Attributes:
        began: when the first transfer of a request to be received began, wall clock in nanoseconds; reported while it runs.
        expired: prefill side: requests whose lease ran out before all readers had read.
        pinned: loads that were ordered to be given up and have a transfer in flight: their blocks may be written to until
            vLLM reports them as received, whatever becomes of the request.
        stuck: loads whose blocks have become pinned, by an order or by a refused release: only the gauges use it.
        moves: loads and saves that have ended, of a connector that does not report them itself.
        broken: blocks that such a connector did not load.
        handshakes: when a request came to wait behind other peers' handshakes, and when (True) the one that it waits for began.
        reasons: why loads of such a connector have failed, where it says so; no later than the failures themselves.
        digests: prefill side: digests of requests whose prefill has ended in this step.
        checked: decode side: loads that were compared with the sender's digest.
        misread: decode side: loads that were read from another engine than the request names.

    """

    began: tuple[tuple[str, int], ...] = ()
    expired: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    moves: tuple[FinishedTransfer, ...] = ()
    broken: tuple[BrokenBlocks, ...] = ()
    reasons: tuple[LoadReason, ...] = ()
    handshakes: tuple[tuple[str, int, bool], ...] = ()
    digests: tuple[RankDigest, ...] = ()
    checked: tuple[CheckedLoad, ...] = ()
    misread: tuple[Misread, ...] = ()


def find_reports(metadata: Any) -> Iterator[WorkerReport]:
    """Yield the reports in a connector's worker metadata, those of a MultiConnector's children included."""
    if isinstance(metadata, WorkerReport):
        yield metadata
        return
    children = getattr(metadata, "metadata", None)
    if isinstance(children, tuple):
        for child in children:
            yield from find_reports(child)


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """An item that one rank could not load and holds a placeholder for: ``FAILURE_MODE_*``, ``ERROR_TYPE_*``.

    *rehearsal*: a fault drill caused it.
    """

    item: str
    mode: int
    error_type: int
    rank: int = 0
    rehearsal: bool = False


@dataclass(frozen=True, slots=True)
class CheckedItem:
    """An item that one rank was to compare with its producer's checksum.

    Attributes:
        mismatched: it differs.
        skipped: the time for the comparisons of a step was spent, so it was not compared.

    """

    item: str
    mismatched: bool
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class EcReport(RankReport[ItemFailure]):
    """One step of one rank, or of several that were aggregated.

    Attributes:
        checked: items that were to be compared with their producer's checksum.

    """

    checked: tuple[CheckedItem, ...] = ()


def failed_items(output: Any) -> dict[str, ItemFailure]:
    """Return the failures in an ``ECConnectorOutput`` by item, of several ranks' the first; none for None."""
    metadata = getattr(output, "ec_connector_worker_meta", None)
    found: dict[str, ItemFailure] = {}
    if isinstance(metadata, EcReport):
        for failure in metadata.failures:
            found.setdefault(failure.item, failure)
    return found


def checked_items(output: Any) -> tuple[CheckedItem, ...]:
    """Return what the ranks were to compare, from an ``ECConnectorOutput`` or None."""
    metadata = getattr(output, "ec_connector_worker_meta", None)
    return metadata.checked if isinstance(metadata, EcReport) else ()
