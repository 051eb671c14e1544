"""EC connectors in a worker: reports loads and saves, and in guarded steps keeps a failed load from harming other requests.

vLLM's encoder step needs every item that the scheduler has planned to load: an exception, or an item that is not there,
ends the engine. In a step whose metadata says ``penstock_guarded`` such an item gets a placeholder of the right shape, and the
scheduler rewinds the requests that used it (``ec/step_loads.py``). In any other step vLLM's own behaviour stays.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.orders import Drills
from penstock.instrumentation.runtime import LAST_WORDS_SECONDS, runtime
from penstock.instrumentation.vllm.compat import encoder_widths
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.ec.item_checks import Checksums, Placeholders
from penstock.instrumentation.vllm.ec.observer import EcObserver
from penstock.instrumentation.vllm.ec.protocol import EcChecksums, EcFailure, EcLoader, EcTransfer
from penstock.instrumentation.vllm.messages import EcReport, ItemFailure
from penstock.instrumentation.vllm.naming import UNKNOWN, Peer, failure_modes
from penstock.instrumentation.vllm.progress import ConnectorCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from penstock.instrumentation.orders import Drill
    from penstock.instrumentation.vllm.ec.protocol import ExternalItem

_GUARD = guard("ec_worker")


class EcWorker:
    """The encoder outputs of one worker; on its main thread."""

    def __init__(self, config: Any, connector: Any) -> None:
        """Watch *connector*, which vLLM has built from *config*."""
        self._rank: int = config.parallel_config.rank
        self._observer = EcObserver(type(connector).__name__, c.COMPONENT_WORKER, self._rank)
        self.calls = ConnectorCalls(type(connector).__name__, self._rank, c.CHANNEL_EC)
        # A connector that moves items ahead of scheduling reports its transfers itself; here it only copies.
        self._moves_ahead = isinstance(connector, EcLoader)
        if self._moves_ahead:
            connector.observe(self._observer)
        self._produces = bool(connector.is_producer)
        self._shapes = Placeholders(config.model_config, encoder_widths(config.ec_transfer_config))
        settings = runtime.settings
        self._drills = Drills(allowed=settings is not None and settings.allow_faults)
        self._placeholders: dict[str, weakref.ref[torch.Tensor]] = {}
        self._failures: list[ItemFailure] = []
        self._encodes: Mapping[str, str] = {}
        self._checksums = Checksums()
        if isinstance(connector, EcChecksums):
            # Their library is imported now, and not in the first step that compares.
            fingerprints.available()

    # A connector whose parts are instrumented

    def leave_transfers(self) -> None:
        """Report no transfers from now on: the connector's own parts do."""
        self._moves_ahead = True

    def drill(self, mode: int, peer: str) -> Drill | None:
        """Return the fault drill that hits this attempt, if one does."""
        return self._drills.hit(c.CHANNEL_EC, mode, peer)

    def note_failure(self, item: str, failure: failure_modes.Failure) -> None:
        """Report to the scheduler that an item was not loaded; no request has computed on it."""
        self._failures.append(
            ItemFailure(item, failure.mode, failure.error_type, self._rank, failure.rehearsal)
        )

    # Loads

    def before_load(self, metadata: Any) -> None:
        """Apply what came with a step: the items that are encoded here, and the fault drills after a change."""
        self._encodes = getattr(metadata, "penstock_encodes", {})
        self._checksums.before_load(metadata)
        drills = getattr(metadata, "penstock_drills", None)
        if drills is not None:
            self._drills.replace(drills)

    def watched(
        self, items: tuple[ExternalItem, ...], cache: Mapping[str, Any], load: Callable[[], None]
    ) -> None:
        """Load as vLLM does and report it; an exception is reported and goes on."""
        start_ns = time.time_ns()
        wanted = [each for each in items if each.item not in cache]
        try:
            load()
        except Exception as error:
            with _GUARD:
                missing = next((each for each in wanted if each.item not in cache), None)
                if missing is not None:
                    self._report_failure(
                        missing, failure_modes.of_store(error, c.FAILURE_MODE_LOAD), start_ns
                    )
                    # vLLM kills all processes of an engine that raises, within milliseconds.
                    runtime.flush(LAST_WORDS_SECONDS)
            raise
        with _GUARD:
            for each in wanted:
                tensor = cache.get(each.item)
                self._loaded(each, tensor, start_ns)
                if isinstance(tensor, torch.Tensor):
                    self._verify(each, tensor, start_ns)

    def guarded(
        self, items: tuple[ExternalItem, ...], cache: MutableMapping[str, Any], load: Callable[[], None]
    ) -> None:
        """Load; afterwards *cache* has every item, and those that could not be loaded are placeholders and reported.

        An exception does not say which item it is about. Connectors load in the order in which the items were allocated, so the
        first that is missing gets a placeholder and the rest is tried again: at most once for each item.
        """
        start_ns = time.time_ns()
        self._drop_placeholders(items, cache)
        wanted = [each for each in items if each.item not in cache]
        failed: dict[str, failure_modes.Failure] = {}
        while True:
            try:
                load()
            except Exception as error:
                missing = next((each for each in wanted if each.item not in cache), None)
                if missing is None:
                    raise
                failed[missing.item] = failure_modes.of_store(error, c.FAILURE_MODE_LOAD)
                self._replace(missing, cache)
            else:
                break
        for each in wanted:
            failure = failed.get(each.item) or self._inspect(each, cache.get(each.item), start_ns)
            if failure is None:
                self._loaded(each, cache[each.item], start_ns)
                continue
            if each.item not in failed:
                self._replace(each, cache)
            self._failures.append(
                ItemFailure(each.item, failure.mode, failure.error_type, self._rank, failure.rehearsal)
            )
            self._report_failure(each, failure, start_ns)

    def without_placeholders(self, cache: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return *cache* as a producer may publish it."""
        bad = {item for item in self._placeholders if self._is_placeholder(item, cache)}
        return {item: tensor for item, tensor in cache.items() if item not in bad} if bad else cache

    def report(self, inner: Any) -> Any:
        """Return the worker metadata of a step around the connector's own.

        Where there is any it is always wrapped, because one rank's own cannot be aggregated with another's report.
        """
        found, self._failures = tuple(self._failures), []
        checked = self._checksums.drain()
        return EcReport(found, checked, inner=inner) if found or checked or inner is not None else None

    def _verify(
        self, item: ExternalItem, tensor: torch.Tensor, start_ns: int
    ) -> failure_modes.Failure | None:
        """Compare an item that is to be verified; return the failure by which it is not used, None without one.

        One that is used all the same is only reported: under ``observe``, and in a step that cannot be rewound.
        """
        with _GUARD:
            failure = self._checksums.fault(item.item, tensor)
            if failure is None or self._checksums.enforced:
                return failure
            self._observer.failed(
                _ec_failure(item.item, failure, start_ns, item.request_id, item.peer), used=True
            )
        return None

    def _inspect(self, item: ExternalItem, tensor: Any, start_ns: int) -> failure_modes.Failure | None:
        if tensor is None:
            return failure_modes.Failure(
                c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER, error_text="the connector did not load the item"
            )
        if not isinstance(tensor, torch.Tensor):
            fault = f"the item is a {type(tensor).__name__}, no tensor"
        else:
            fault = self._shapes.fault(tensor, item.rows, item.modality)
        if fault:
            return failure_modes.Failure(c.FAILURE_MODE_LOAD, c.ERROR_TYPE_CORRUPT, error_text=fault)
        mismatch = self._verify(item, tensor, start_ns)
        if mismatch is not None:
            return mismatch
        drill = self._drills.hit(c.CHANNEL_EC, c.FAILURE_MODE_LOAD, item.peer or UNKNOWN)
        if drill is None:
            return None
        return failure_modes.Failure(
            c.FAILURE_MODE_LOAD,
            c.ERROR_TYPE_OTHER,
            error_text=f"drill {drill.id}",
            rehearsal=True,
        )

    # Placeholders

    def _replace(self, item: ExternalItem, cache: MutableMapping[str, Any]) -> None:
        tensor = torch.zeros(
            (item.rows, self._shapes.width(item.modality)),
            dtype=self._shapes.dtype(item.modality),
            device=_device(cache),
        )
        cache[item.item] = tensor
        self._placeholders[item.item] = weakref.ref(tensor)

    def _drop_placeholders(self, items: tuple[ExternalItem, ...], cache: MutableMapping[str, Any]) -> None:
        """Make room for items that are loaded again, and forget the placeholders that vLLM has dropped."""
        for each in items:
            if self._is_placeholder(each.item, cache):
                del cache[each.item]
        self._placeholders = {item: ref for item, ref in self._placeholders.items() if ref() is not None}

    def _is_placeholder(self, item: str, cache: Mapping[str, Any]) -> bool:
        ref = self._placeholders.get(item)
        tensor = None if ref is None else ref()
        return tensor is not None and cache.get(item) is tensor

    # Reporting

    def on_encoded(self, item: str, tensor: Any) -> None:
        """Record the shape of an item that was encoded here."""
        modality = self._encodes.get(item)
        if modality is not None:
            self._shapes.on_encoded(tensor, modality)

    def on_saved(self, item: str, tensor: Any, start_ns: int, error: Exception | None) -> None:
        """Report an item that was saved for others, or was not because of *error*."""
        if not self._produces or self._moves_ahead:
            return
        ok = error is None
        self._observer.sent(
            EcTransfer(item, Peer(), start_ns, time.time_ns(), tensor.nbytes if ok else 0, ok)
        )
        if error is not None:
            self._observer.failed(
                _ec_failure(item, failure_modes.of_store(error, c.FAILURE_MODE_LOAD), start_ns),
                direction=c.DIRECTION_SEND,
            )
            runtime.flush(LAST_WORDS_SECONDS)

    def _loaded(self, item: ExternalItem, tensor: Any, start_ns: int) -> None:
        if not self._moves_ahead and tensor is not None:
            self._observer.received(
                EcTransfer(
                    item.item,
                    Peer(),
                    start_ns,
                    time.time_ns(),
                    tensor.nbytes,
                    ok=True,
                    request_id=item.request_id,
                )
            )

    def _report_failure(self, item: ExternalItem, failure: failure_modes.Failure, start_ns: int) -> None:
        if not self._moves_ahead:
            self._observer.received(
                EcTransfer(
                    item.item, Peer(), start_ns, time.time_ns(), 0, ok=False, request_id=item.request_id
                )
            )
        # Of what is reported here only a comparison is about the transfer.
        used = False if failure.mode == c.FAILURE_MODE_TRANSFER else None
        self._observer.failed(
            _ec_failure(item.item, failure, start_ns, item.request_id, item.peer),
            rehearsal=failure.rehearsal,
            used=used,
        )


def _ec_failure(
    item: str, failure: failure_modes.Failure, start_ns: int, request_id: str = "", peer: str = ""
) -> EcFailure:
    return EcFailure(
        item,
        failure.mode,
        failure.error_type,
        failure.error_text,
        peer=Peer(peer) if peer else None,
        request_id=request_id,
        error_class=failure.error_class,
        start_ns=start_ns,
    )


def _device(cache: Mapping[str, Any]) -> torch.device:
    """Return where the worker's encoder outputs are."""
    held = next(iter(cache.values()), None)
    if held is not None:
        device: torch.device = held.device
        return device
    from vllm.platforms import current_platform

    kind = current_platform.device_type
    return torch.device(
        f"{kind}:{current_platform.current_device()}" if current_platform.is_cuda_alike() else kind
    )
