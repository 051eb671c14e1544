"""Records why loads of vLLM's MooncakeConnector fail. The base interface reports everything else.

Imports neither Mooncake nor its connector: the hook instruments workers that vLLM has built.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Extension, Requirement, Swaps, registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.base.connector_adapters import classify_mooncake_failure
from penstock.instrumentation.vllm.messages import LoadFailureReasons

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need

_GUARD = guard("mooncake")
_FAILED = "_handle_failed_recv"


class MooncakeWorkerMixin:
    """Mixin over a ``MooncakeConnectorWorker``; runs on the thread of its event loop."""

    _penstock_reasons: LoadFailureReasons | None = None

    def _handle_failed_recv(self, pull_metas: Any, req_ids: Any, reason: str) -> Any:
        """Record the reason, which vLLM only logs."""
        upstream: Any = super()
        reasons = self._penstock_reasons
        if reasons is not None and runtime.active:
            with _GUARD:
                failure = classify_mooncake_failure(reason, sys.exc_info()[1])
                for each in req_ids:
                    meta = pull_metas.get(each)
                    if meta is not None and not meta.failed:
                        reasons.note(meta.d_req_id, failure)
        return upstream._handle_failed_recv(pull_metas, req_ids, reason)


class MooncakeHook:
    """Requires what the mixin extends in the worker's class; it patches worker objects only."""

    name = "mooncake"
    component = c.COMPONENT_WORKER

    def __init__(self, worker: type) -> None:
        """Check *worker*, the class of a Mooncake worker."""
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
        """Restore the class of live workers."""
        self.swaps.restore()


class MooncakeWorkers:
    """Instruments every Mooncake worker of the process, if the hook's requirements are met."""

    def __init__(self) -> None:
        self._hook: MooncakeHook | None = None

    def instrument(self, connector: Any, rank: int) -> LoadFailureReasons | None:
        """Put the mixin over the worker of *connector*; return None if it has none or the requirements are not met."""
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
