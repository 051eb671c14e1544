"""Instruments NIXL workers and their agents, as vLLM has built them. Imports neither NIXL nor its connector."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks import (
    AnyOf,
    Extension,
    InstanceState,
    Part,
    Requirement,
    Swaps,
    registry,
)
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import worker_differences
from penstock.instrumentation.vllm.kv.nixl.agent_mixin import NixlAgentMixin
from penstock.instrumentation.vllm.kv.nixl.observer import NixlObserver
from penstock.instrumentation.vllm.kv.nixl.snapshot import NixlSnapshot
from penstock.instrumentation.vllm.kv.nixl.worker_mixin import NixlSleepMixin, NixlWorkerMixin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need


# Read by the snapshot on another thread. Other state may be missing (NixlWorkerMixin).
_STATE = (
    "_remote_agents",
    "_engine_last_active",
    "_failed_recv_reqs",
    "_recving_metadata",
    "_recving_transfers",
)


def _mixins(worker: type) -> Iterable[type]:
    """Return what goes over the class of a worker, the innermost first."""
    sleeps = (NixlSleepMixin,) if NixlSleepMixin.is_needed(worker) else ()
    return (*worker_differences(worker), *sleeps, NixlWorkerMixin)


class NixlHook:
    """Requires what the mixins extend in the classes of a worker and its NIXL agent; it patches objects only."""

    name = "nixl"
    component = c.COMPONENT_WORKER

    def __init__(self, worker: type, agent: type) -> None:
        """Check the classes of a worker, pull or push, and of its NIXL agent."""
        self._worker = worker
        self._agent = agent
        self.swaps = Swaps()

    def requires(self) -> Iterable[Need | Part]:
        """Return the methods that the mixins extend, by their names of today or of before (``compat``)."""
        worker, agent = self._worker, self._agent
        return [
            Requirement(worker, "_log_failure", ("failure_type", "req_id", "msg", "error", "meta")),
            Requirement(worker, "_ensure_handshake", ("engine_id", "host", "port")),
            Requirement(worker, "_nixl_handshake", ("host", "port", "remote_tp_size", "expected_engine_id")),
            AnyOf((Requirement(worker, "get_transfer_results"), Requirement(worker, "get_finished"))),
            Requirement(worker, "get_kv_connector_stats"),
            Requirement(worker, "start_load_kv", ("metadata",)),
            Requirement(worker, "_get_new_notifs"),
            Requirement(agent, "make_prepped_xfer", ("notif_msg",)),
            Requirement(agent, "transfer", ("handle",)),
            Requirement(agent, "check_xfer_state", ("handle",)),
            Requirement(agent, "send_notif", ("remote_agent_name", "notif_msg")),
            Requirement(agent, "get_xfer_telemetry", ("handle",)),
            Requirement(agent, "release_xfer_handle", ("handle",)),
            Requirement(agent, "get_new_notifs"),
            InstanceState(worker, _STATE),
            *(Extension(mixin, worker) for mixin in _mixins(worker)),
            Extension(NixlAgentMixin, agent),
            Part(
                "lease_expiry",
                "which leases expired before they were read",
                (
                    AnyOf(
                        (
                            Requirement(worker, "_reap_expired_send_leases", ("done_sending",)),
                            InstanceState(worker, ("_reqs_to_send",)),
                        )
                    ),
                ),
            ),
        ]

    def install(self) -> None:
        """Do nothing: :class:`NixlWorkers` instruments each worker."""

    def uninstall(self) -> None:
        """Restore the classes of live workers and their agents."""
        self.swaps.restore()


class NixlWorkers:
    """Instruments every NIXL worker of the process, if the hook's requirements are met."""

    def __init__(self) -> None:
        self._hook: NixlHook | None = None
        self._numbers = itertools.count()

    def instrument(self, connector: Any) -> NixlObserver | None:
        """Put the mixins over the worker of *connector* and its agent; None if it has none or the requirements are not met."""
        worker: Any = getattr(connector, "connector_worker", None)
        if not hasattr(worker, "nixl_wrapper"):
            return None
        self._hook = self._hook or NixlHook(type(worker), type(worker.nixl_wrapper))
        settings = runtime.settings
        if not registry.install(self._hook, settings.hooks_disabled if settings is not None else ()):
            return None
        observer = NixlObserver(worker, name=f"nixl.{next(self._numbers)}")
        for mixin in _mixins(type(worker)):
            self._hook.swaps.swap(worker, mixin)
        self._hook.swaps.swap(worker.nixl_wrapper, NixlAgentMixin)
        worker._penstock = observer
        worker.nixl_wrapper._penstock = observer
        if not observer.push:
            worker.nixl_wrapper._penstock_on_notification = worker._penstock_report_late_read
        runtime.snapshots.add(observer.name, NixlSnapshot(observer, worker).fill)
        return observer
