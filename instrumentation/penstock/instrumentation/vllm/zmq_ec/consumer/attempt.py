"""State of fetching one item, over all its retries, and what an item must be to be loaded. The fetcher acts on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec import EcFailure
from penstock.instrumentation.vllm.zmq_ec.consumer.area_copy import content_of
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

if TYPE_CHECKING:
    from penstock.instrumentation.orders import Drill
    from penstock.instrumentation.vllm.zmq_ec.consumer.area_copy import AreaCopy
    from penstock.instrumentation.vllm.zmq_ec.consumer.chunked_transfer import ChunkedTransfer
    from penstock.instrumentation.vllm.zmq_ec.consumer.item_records import FetchOrder
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer
    from penstock.instrumentation.vllm.zmq_ec.memory import Slot, Slots
    from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import AreaReader, FoundItem


@dataclass(frozen=True, slots=True)
class Expected:
    """What an item must be to be loaded here: the model's digest, its element type, and the width of its embeddings."""

    model: bytes
    dtype: str
    hidden_size: int

    def problem(self, answer: protocol.Have) -> str:
        """Return why no item of the producer that gave this *answer* can be loaded; or empty."""
        content = answer.content
        if answer.model != self.model:
            return "the producer runs another model, or embeds with another width"
        if content.dtype != self.dtype:
            return f"its element type is {content.dtype}, not {self.dtype}"
        # Several layers' features may lie side by side (DeepStack).
        if content.width % self.hidden_size:
            return f"its width {content.width} is no multiple of the embeddings' {self.hidden_size}"
        return ""


def misfit(wanted: FetchOrder, content: protocol.Content, slots: Slots) -> str:
    """Return why *content* is not what was *wanted*, or can have no place in *slots*; or empty."""
    if content.rows != wanted.rows:
        return f"it has {content.rows} rows, not {wanted.rows}"
    if not slots.fits(content.size):
        return f"its {content.size} bytes are more than the shared memory takes (region_bytes)"
    return ""


def find_fitting(
    area: AreaReader | None, wanted: FetchOrder, expected: Expected, slots: Slots
) -> FoundItem | None:
    """Return the entry of what is *wanted*; None without an *area*, or where it is not there or cannot be loaded here."""
    found = None if area is None else area.find(wanted.item)
    if area is None or found is None or area.checked(found) is None:
        return None
    content = content_of(found)
    answer = protocol.Have(0, expected.model, content)
    unfit = content.problem() or expected.problem(answer) or misfit(wanted, content, slots)
    return None if unfit else found


@dataclass(slots=True, eq=False)
class Attempt:
    """One ordered item.

    Attributes:
        asked: probes without an answer, by their tag, and when each was sent (wall clock, ns).
        deadline: of the probes, of the wait for room, or of the whole transfer.
        source: the producer that has it; *tag* and *transfer* are set during the transfer.
        found: its entry in the memory of a producer on this host, where it was found; messages then have no name for it.
        failure: the last one; None while nothing was there that failed.
        drill: what makes the transfer fail at its end, or be slow.
        held_until: when a slow one may end.

    """

    wanted: FetchOrder
    asked: dict[int, tuple[Producer, int]] = field(default_factory=dict)
    deadline: float = 0.0
    retries: int = 0
    source: Producer | None = None
    content: protocol.Content | None = None
    found: FoundItem | None = None
    slot: Slot | None = None
    transfer: ChunkedTransfer | AreaCopy | None = None
    tag: int = 0
    began_ns: int = 0
    failure: EcFailure | None = None
    drill: Drill | None = None
    held_until: float = 0.0

    def failed(
        self,
        mode: int,
        error_type: int,
        text: str,
        peer: Producer | None,
        start_ns: int,
        *,
        rehearsal: bool = False,
        blameless: bool = False,
    ) -> EcFailure:
        """Return a failure of this item; *rehearsal* and *blameless* as of :class:`EcFailure`."""
        return EcFailure(
            item=self.wanted.item,
            mode=mode,
            error_type=error_type,
            text=text,
            peer=None if peer is None else peer.peer,
            request_id=self.wanted.request_id,
            start_ns=start_ns,
            rehearsal=rehearsal,
            blameless=blameless,
        )


REFUSALS = {
    protocol.Reason.VERSION: c.ERROR_TYPE_INCOMPATIBLE,
    protocol.Reason.MODEL: c.ERROR_TYPE_INCOMPATIBLE,
    protocol.Reason.CHANGED: c.ERROR_TYPE_EVICTED,
}
"""A refusal's error type, where it is not OTHER."""
