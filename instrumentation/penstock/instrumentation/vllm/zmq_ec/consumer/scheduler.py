"""A consumer's scheduler side: answers vLLM's calls from the fetcher's state; never blocks."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.naming import Peer
from penstock.instrumentation.vllm.zmq_ec.consumer.fetcher import Fetcher
from penstock.instrumentation.vllm.zmq_ec.consumer.item_records import Loaded, LoadOrder, Readiness
from penstock.instrumentation.vllm.zmq_ec.consumer.items import Items
from penstock.instrumentation.vllm.zmq_ec.consumer.reporting import Rehearsal, Reporter
from penstock.instrumentation.vllm.zmq_ec.memory import Slots
from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import BEGIN, RegionName, SharedRegion
from penstock.instrumentation.vllm.zmq_ec.settings import named_producer
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.instrumentation.orders import Drill
    from penstock.instrumentation.vllm.ec import EcFailure, EcListener
    from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Expected
    from penstock.instrumentation.vllm.zmq_ec.settings import ConsumerSettings
    from penstock.instrumentation.vllm.zmq_ec.wire.curve import ClientKeys

logger = logging.getLogger("vllm.penstock.zmq_ec")

_RESIDENT_MAX: Final = 65_536


class ConsumerScheduler:
    """Decides which items a step loads. Only on the scheduler's thread, except :attr:`items`.

    Attributes:
        items: the state of each item. Thread-safe.

    """

    def __init__(
        self,
        settings: ConsumerSettings,
        expected: Expected,
        *,
        ranks: int,
        has_media: Callable[[Any], bool],
        keys: ClientKeys | None = None,
    ) -> None:
        """Reserve the shared memory; no thread yet.

        Args:
            settings: of the connector.
            expected: what an item must be.
            ranks: how many workers report each load.
            has_media: whether a feature could be encoded here.
            keys: for CURVE; without, connections are neither encrypted nor authenticated.

        Raises:
            OutOfMemoryError, RegionError: the memory cannot be had.

        """
        self._settings = settings
        self._expected = expected
        self._ranks = ranks
        self._has_media = has_media
        self._keys = keys
        self._region = SharedRegion(settings.region_bytes)
        self._slots = Slots(BEGIN, settings.region_bytes)
        self._closed = False
        # Whether the workers can read the region: how many do, and whether one cannot.
        self._mapped = 0
        self._unmapped = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.items = Items(
            self._slots,
            missing_for=settings.missing_for,
            bad_for=settings.bad_for,
            pending_for=settings.longest_wait,
            wake=self._wake_fetcher,
        )
        self._fetcher: Fetcher | None = None
        self._reporter = Reporter()
        self._rehearsal = Rehearsal()
        # What the call of ensure for one request may ask, by item: of a request that is refused there is no such call.
        self._kept_for = ""
        self._kept: dict[str, tuple[str, ...]] = {}
        # Mirror of vLLM's own encoder cache: its items need not be fetched.
        self._resident: OrderedDict[str, None] = OrderedDict()
        self._allocated: set[str] = set()
        self._reallocated: set[str] = set()
        # By request: the items that vLLM's cache has allocated for it and keeps while the request runs.
        self._held: dict[str, set[str]] = {}
        self._promised: set[str] = set()
        self._unusable: set[str] = set()
        self._loads: dict[str, LoadOrder] = {}
        self._unavailable: set[str] = set()

    def take_statistics(self) -> dict[str, Any] | None:
        """Return what was moved and asked since the last call, as vLLM's statistics name it; None for nothing."""
        return self._reporter.statistics.take()

    def observe(self, observer: EcListener) -> None:
        """Report to *observer* from now on; it also decides about failed loads."""
        self._reporter.observer = observer
        self.items.observed = True

    def ensure(self, request: Any, computed: int) -> bool:
        """Start fetching what *request* needs beyond its computed tokens; return whether it can be scheduled."""
        self._unusable.clear()
        if self._closed:
            return True
        proceed = True
        for feature in request.mm_features:
            position = feature.mm_position
            if position.offset + position.length > computed and not self._admit(request, feature):
                proceed = False
        self._kept.clear()
        return proceed

    def candidates(self, request: Any, feature: Any) -> tuple[str, ...]:
        """Return the producers that :meth:`ensure` would ask for the item of *feature*; none if it is known or not to be fetched."""
        item = feature.identifier
        resident = item in self._resident and self._has_media(feature)
        if self._closed or resident or not self._is_fetchable(item) or self.items.is_known(item):
            return ()
        return tuple(dict.fromkeys((*self._named(request, item), *self._settings.producers)))

    def keep_to(self, request_id: str, item: str, producers: tuple[str, ...]) -> None:
        """Ask only these for *item* in the call of :meth:`ensure` for this request; with none, do without it."""
        if request_id != self._kept_for:
            self._kept_for, self._kept = request_id, {}
        self._kept[item] = producers

    @property
    def connected(self) -> frozenset[str]:
        """The producers that have answered on a connection that stands; from any thread."""
        fetcher = self._fetcher
        return frozenset() if fetcher is None else fetcher.connected

    def rehearse(self, hit: Callable[[int, str], Drill | None]) -> None:
        """Let *hit* choose the probes and transfers that fail or are slow, from now on."""
        self._rehearsal.hit = hit

    def _admit(self, request: Any, feature: Any) -> bool:
        item = feature.identifier
        resident = item in self._resident
        # A request without media does not rely on it: vLLM may evict the item for the request's next one.
        if resident and self._has_media(feature):
            return True
        readiness = self._want(request, feature)
        if readiness in (Readiness.READY, Readiness.PENDING):
            return readiness is Readiness.READY
        self._unusable.add(item)
        failed = readiness is Readiness.FAILED
        if failed and self.items.observed:
            return False  # until it is decided
        if failed and self._settings.load_failure == "fail":
            self._fail(request, item, "its load failed, and load_failure is fail")
            return False
        if not self._has_media(feature) and item not in self._held.get(request.request_id, ()):
            self._fail(request, item, "it cannot be loaded, and the request has no media to encode")
            return False
        return True

    def _is_safe(self) -> bool:
        """Whether a load can be ordered: every rank has mapped the region, or an observer can rewind the step."""
        return self.items.observed or self._mapped >= self._ranks

    def _want(self, request: Any, feature: Any) -> Readiness:
        item = feature.identifier
        kept = self._kept.get(item) if request.request_id == self._kept_for else None
        if kept == () or self._unmapped:
            return Readiness.ABSENT
        rows = feature.mm_position.get_num_embeds()
        # Asked in every step that the request waits in, so the order is composed only where there is none.
        readiness = self.items.want(item, rows, request.request_id)
        if readiness is None:
            readiness = self._order(request, item, rows, kept)
        if readiness is Readiness.READY and not self._is_safe() and self._has_media(feature):
            return Readiness.ABSENT
        return readiness

    def _order(self, request: Any, item: str, rows: int, kept: tuple[str, ...] | None) -> Readiness:
        if not self._is_fetchable(item):
            return Readiness.ABSENT
        fetcher = self._start()
        producers = self._named(request, item)
        candidates = {*producers, *self._settings.producers} if kept is None else set(kept)
        expected = Peer(candidates.pop()) if len(candidates) == 1 else None
        admitted = None if kept is None else frozenset(kept)
        return self.items.order(
            item, rows, request.request_id, producers, expected, admitted, fetch=fetcher.early.fetch
        )

    def _is_fetchable(self, item: str) -> bool:
        return not self._unmapped and protocol.item_fits(item)

    def _named(self, request: Any, item: str) -> tuple[str, ...]:
        allowed = self._settings.allow_request_producers
        return named_producer(request.ec_transfer_params, item) if allowed else ()

    def _fail(self, request: Any, item: str, why: str) -> None:
        if request.request_id not in self._unavailable:
            logger.warning("ZmqECConnector: request %s fails: item %s: %s", request.request_id, item, why)
            self._unavailable.add(request.request_id)

    def has(self, item: str) -> bool:
        """Whether *item* can be loaded in this step. Never waits."""
        if item in self._unusable or not self.items.is_ready(item):
            return False
        self._promised.add(item)
        return True

    def on_allocated(self, item: str, request_id: str) -> None:
        """Order the load of *item* if this step promised it; vLLM's encoder cache has room for it now."""
        self._held.setdefault(request_id, set()).add(item)
        if item in self._resident and item not in self._allocated:
            self._reallocated.add(item)
        self._resident[item] = None
        self._allocated.add(item)
        if len(self._resident) > _RESIDENT_MAX:
            self._resident.popitem(last=False)
        if item in self._promised and item not in self._loads:
            order = self.items.claim(item, self._ranks)
            if order is not None:
                self._loads[item] = order

    def end_step(self, freed: Iterable[str]) -> tuple[tuple[LoadOrder, ...], RegionName | None]:
        """Return the step's orders; *freed* are the items that vLLM's encoder cache has evicted."""
        freed = set(freed)
        if self._reallocated - freed:
            # vLLM has allocated what it had: it has emptied its cache, of which no hook is called.
            self._resident = OrderedDict.fromkeys(self._allocated)
            for held in self._held.values():
                held.intersection_update(self._allocated)
        self._reallocated.clear()
        for item in freed:
            if item not in self._allocated:
                self._resident.pop(item, None)
                for held in self._held.values():
                    held.discard(item)
        loads = tuple(self._loads.values())
        self._allocated.clear()
        self._promised.clear()
        self._loads.clear()
        self.items.end_step()
        if self._fetcher is not None:
            self._fetcher.early.end_step()
            if not loads:  # of others, the workers' report tells when they are over
                self._report_copies()
        wanted = loads or (self._mapped < self._ranks and not self._unmapped)
        return loads, self._region.name if wanted else None

    def on_finished(self, request_id: str) -> None:
        """Forget a request that has finished."""
        self._held.pop(request_id, None)

    def on_report(self, report: Loaded) -> None:
        """Apply a report of the workers."""
        self._mapped += report.mapped
        if report.unmapped and not self._unmapped:
            self._unmapped = True
            logger.error("ZmqECConnector: everything is encoded here: %s", report.unmapped)
        for generation in report.unreadable:
            self.items.on_unreadable(generation)
        for generation in report.done:
            self.items.on_loaded(generation)
        self._report_copies()

    def drain_unavailable(self) -> set[str]:
        """Return the requests that have become impossible since the last call."""
        found, self._unavailable = self._unavailable, set()
        return found

    def give_up(self, item: str) -> None:
        """Do without *item* for a while."""
        self.items.give_up(item)

    def drain_failures(self) -> list[EcFailure]:
        """Return the loads that failed since the last call."""
        return self.items.drain_failures()

    def close(self) -> None:
        """Stop the thread and release the memory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._fetcher is None or self._fetcher.stop():
            self._region.close()
            os.close(self._wake)

    def _wake_fetcher(self) -> None:
        if not self._closed:
            os.eventfd_write(self._wake, 1)

    def _report_copies(self) -> None:
        """Let the fetcher tell producers what has been copied early: while a step loads it, both need the interpreter."""
        if self._fetcher is not None and self._fetcher.has_unreported:
            self._wake_fetcher()

    def _start(self) -> Fetcher:
        if self._fetcher is None:
            self._fetcher = Fetcher(
                self.items.orders,
                self._slots,
                self._region,
                self._settings,
                self._expected,
                self._reporter,
                self._rehearsal,
                self._wake,
                self._keys,
            )
        return self._fetcher
