"""What Penstock adds to the worker of vLLM's MooncakeConnector: why a load failed. All else is told by the base interface.

It imports neither Mooncake nor its connector: vLLM has built the worker.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Extension, Requirement, Swaps, registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.base.connector_adapters import failure_of_mooncake
from penstock.instrumentation.vllm.messages import LoadFailureReasons

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need

_GUARD = guard("mooncake")
_FAILED = "_handle_failed_recv"


class MooncakeWorkerMixin:
    """Over a ``MooncakeConnectorWorker``; on the thread of its event loop."""

    _penstock_reasons: LoadFailureReasons | None = None

    def _handle_failed_recv(self, pull_metas: Any, req_ids: Any, reason: str) -> Any:
        """Note the reason, which vLLM only logs."""
        host: Any = super()
        reasons = self._penstock_reasons
        if reasons is not None and runtime.active:
            with _GUARD:
                failure = failure_of_mooncake(reason, sys.exc_info()[1])
                for each in req_ids:
                    meta = pull_metas.get(each)
                    if meta is not None and not meta.failed:
                        reasons.note(meta.d_req_id, failure)
        return host._handle_failed_recv(pull_metas, req_ids, reason)


class MooncakeHook:
    """What the mixin needs of the class of one worker; nothing is patched but the objects."""

    name = "mooncake"
    component = c.COMPONENT_WORKER

    def __init__(self, worker: type) -> None:
        """Look at the class of a worker."""
        self._worker = worker
        self.swaps = Swaps()

    def requires(self) -> Iterable[Need]:
        """Return the method that the mixin extends."""
        return [
            Requirement(self._worker, _FAILED, ("pull_metas", "req_ids", "reason")),
            Extension(MooncakeWorkerMixin, self._worker),
        ]

    def install(self) -> None:
        """Do nothing: :class:`MooncakeWorkers` instruments each worker."""

    def uninstall(self) -> None:
        """Give the workers that live their class back."""
        self.swaps.restore()


class MooncakeWorkers:
    """Instruments every Mooncake worker of the process, where the hook fits."""

    def __init__(self) -> None:
        self._hook: MooncakeHook | None = None

    def instrument(self, connector: Any, rank: int) -> LoadFailureReasons | None:
        """Put the mixin over the worker of *connector*; None if it is not Mooncake's or does not fit."""
        worker: Any = getattr(connector, "connector_worker", None)
        if not hasattr(worker, _FAILED):
            return None
        self._hook = self._hook or MooncakeHook(type(worker))
        settings = runtime.settings
        if not registry.install(self._hook, settings.hooks_disabled if settings is not None else ()):
            return None
        self._hook.swaps.swap(worker, MooncakeWorkerMixin)
        worker._penstock_reasons = LoadFailureReasons(rank)
        reasons: LoadFailureReasons = worker._penstock_reasons
        return reasons
