"""A producer's answer to a frame. No IO; no state but the cache and counters."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.memory.item_area import this_place
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.producer.host_cache import HostCache

_TAKEN_MAX: Final = 3600 * 10**9
"""The longest time, in nanoseconds, that is believed of a copy: it goes into reports."""


class Reply(NamedTuple):
    """Frames to send, if any, and whether they are an item's first or last bytes; *tag* is the request's.

    Attributes:
        attaches: whether they say where the memory is.
        taken_in: nanoseconds in which a consumer on this host says that it has copied the item; there are then no frames.

    """

    frames: list[bytes | memoryview]
    tag: int = 0
    item: str = ""
    size: int = 0
    first: bool = False
    last: bool = False
    attaches: bool = False
    taken_in: int = 0


class Responder:
    """Answers from *cache* for one model.

    Attributes:
        counts: answers by their kind, or the reason of a refusal, in lower case.

    """

    def __init__(self, cache: HostCache, model: bytes) -> None:
        self.counts: Counter[str] = Counter()
        self._cache = cache
        self._model = model
        # Whether the last item that was asked for was asked for with a CRC-32.
        self._crc_wanted = True

    def answer(self, frame: bytes) -> Reply:
        """Return the reply to a request, whatever *frame* is."""
        try:
            request = protocol.decode_request(frame)
            self._check(request)
            match request:
                case protocol.Probe():
                    return self._probe(request)
                case protocol.Fetch():
                    return self._fetch(request)
                case protocol.Attach():
                    return self._attach(request)
                case protocol.Taken():
                    return Reply([], request.tag, request.item, taken_in=min(request.nanos, _TAKEN_MAX))
        except protocol.WireError as error:
            return self._refuse(error.tag, error.reason, str(error))

    def busy(self, reply: Reply) -> Reply:
        """Return the refusal that replaces *reply* for a saturated consumer."""
        return self._refuse(reply.tag, protocol.Reason.BUSY, "too much is on its way to this consumer")

    def fingerprint(self, item: str) -> bool:
        """Compute the fingerprint of *item*; return whether consumers will probably ask for no other checksum. From any thread."""
        if not fingerprints.available():
            return False
        self._cache.printed(item)
        return not self._crc_wanted

    def seal(self, item: str) -> bool:
        """Compute the checksums of *item* that consumers will probably ask for; return True."""
        if not self.fingerprint(item):
            self._cache.content(item)
        return True

    def take(self, item: str) -> int:
        """Record that a consumer that knows the memory has copied *item*; return its bytes, 0 if it is not there (any more)."""
        self._crc_wanted = False
        self.counts["taken"] += 1
        content = self._cache.printed(item)
        return 0 if content is None else content.size

    def _check(self, request: protocol.Request) -> None:
        if request.model != self._model:
            text = "this producer runs another model, or embeds with another width"
            raise protocol.WireError(text, protocol.Reason.MODEL, request.tag)

    def _probe(self, request: protocol.Probe) -> Reply:
        wanted = request.fingerprint and fingerprints.available()
        content = self._cache.printed(request.item) if wanted else self._cache.content(request.item)
        if content is None:
            return self._miss(request.tag)
        self._crc_wanted = not wanted
        self.counts["have"] += 1
        return Reply([protocol.encode(protocol.Have(request.tag, self._model, content))])

    def _fetch(self, request: protocol.Fetch) -> Reply:
        content = self._cache.named(request.item, request.crc)
        if content is None:
            return self._miss(request.tag)
        if content.crc != request.crc:
            raise protocol.WireError("the item has another content now", protocol.Reason.CHANGED, request.tag)
        end = request.offset + request.length
        if end > content.size:
            raise protocol.WireError(
                f"bytes up to {end} of an item of {content.size}", protocol.Reason.TOO_LARGE, request.tag
            )
        payload = self._cache.chunk(request.item, request.offset, request.length)
        if payload is None:
            return self._miss(request.tag)
        self.counts["chunk"] += 1
        header = protocol.encode(protocol.Chunk(request.tag, content.crc, request.offset, request.length))
        return Reply(
            [header, payload],
            request.tag,
            request.item,
            content.size,
            first=request.offset == 0,
            last=end == content.size,
        )

    def _attach(self, request: protocol.Attach) -> Reply:
        area = self._cache.area
        if area is None or request.place != this_place() or not fingerprints.available():
            return Reply([protocol.encode(protocol.Miss(request.tag))])
        self.counts["area"] += 1
        message = protocol.Area(request.tag, area.pid, area.fd, area.capacity, area.token)
        return Reply([protocol.encode(message)], request.tag, attaches=True)

    def _refuse(self, tag: int, reason: protocol.Reason, text: str) -> Reply:
        self.counts[reason.name.lower()] += 1
        return Reply([protocol.encode(protocol.Refused(tag, reason, text))], tag)

    def _miss(self, tag: int) -> Reply:
        self.counts["miss"] += 1
        return Reply([protocol.encode(protocol.Miss(tag))])
