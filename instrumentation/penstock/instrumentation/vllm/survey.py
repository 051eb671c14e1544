"""Checks which hooks fit the installed vLLM, without installing any.

An engine checks some only when vLLM resolves a scheduler class, builds a NIXL worker, or its API server, or takes its
first request (``scheduler/hook.py``, ``kv/nixl/hook.py``, ``api_server.py``); here they are checked against the classes that vLLM ships.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks import Fit, HookReport, HookStatus, fit_of
from penstock.instrumentation.vllm.install import ec_adapters, hooks
from penstock.instrumentation.vllm.kv.base import KvWorkerHook, MooncakeHook
from penstock.instrumentation.vllm.kv.nixl import NixlHook
from penstock.instrumentation.vllm.kv.tiering import P2pTierHook, tier_classes
from penstock.instrumentation.vllm.readiness import ReadinessHook
from penstock.instrumentation.vllm.recovery import ClientErrorHook
from penstock.instrumentation.vllm.scheduler import SchedulerHook

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.instrumentation.vllm.ec import PartHook

_SCHED: Final = "vllm.v1.core.sched"
_NIXL: Final = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"

# Only the first is in every vLLM.
SCHEDULERS: Final = (
    f"{_SCHED}.scheduler.Scheduler",
    f"{_SCHED}.async_scheduler.AsyncScheduler",
    f"{_SCHED}.diffusion_scheduler.DiffusionScheduler",
)
NIXL_WORKERS: Final = (
    f"{_NIXL}.pull_worker.NixlPullConnectorWorker",
    f"{_NIXL}.push_worker.NixlPushConnectorWorker",
)
MOONCAKE_WORKER: Final = (
    "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector.MooncakeConnectorWorker"
)


def survey(disabled: Collection[str] = ()) -> list[HookReport]:
    """Return the report of each hook; *disabled* are the names of those that are switched off."""
    return [
        *(_report(each.name, each.component, functools.partial(fit_of, each), disabled) for each in hooks()),
        *(
            _report("scheduler", c.COMPONENT_SCHEDULER, functools.partial(_scheduler, name), disabled, name)
            for name in SCHEDULERS
        ),
        *(
            _report("nixl", c.COMPONENT_WORKER, functools.partial(_nixl, name), disabled, name)
            for name in NIXL_WORKERS
        ),
        _report("kv_worker", c.COMPONENT_WORKER, functools.partial(fit_of, KvWorkerHook()), disabled),
        _report("mooncake", c.COMPONENT_WORKER, _mooncake, disabled),
        _report(P2pTierHook.name, P2pTierHook.component, _p2p_tier, disabled),
        *(
            _report(each.name, each.component, functools.partial(_of_connector, each), disabled)
            for adapter in ec_adapters()
            for each in adapter.hooks()
        ),
        _report(
            ClientErrorHook.name,
            ClientErrorHook.component,
            functools.partial(fit_of, ClientErrorHook()),
            disabled,
        ),
        _report(
            ReadinessHook.name,
            ReadinessHook.component,
            functools.partial(fit_of, ReadinessHook()),
            disabled,
        ),
    ]


class _NotUsedError(Exception):
    """The hook has nothing to do here; the text says why."""


def _scheduler(name: str) -> Fit:
    try:
        scheduler_class = _load(name)
    except (ImportError, AttributeError) as error:
        if name == SCHEDULERS[0]:
            raise
        raise _NotUsedError("this vLLM has no such class") from error
    return fit_of(SchedulerHook(scheduler_class))


def _nixl(name: str) -> Fit:
    try:
        agent = _load("vllm.distributed.nixl_utils.NixlWrapper")
    except AttributeError:
        agent = None
    if agent is None:
        raise _NotUsedError("vLLM finds no NIXL")
    return fit_of(NixlHook(_load(name), agent))


def _mooncake() -> Fit:
    # It warns, in a survey as well, where Mooncake is not installed.
    logging.getLogger(MOONCAKE_WORKER.rpartition(".")[0]).disabled = True
    try:
        worker = _load(MOONCAKE_WORKER)
    except (ImportError, AttributeError) as error:
        raise _NotUsedError("this vLLM has no such connector") from error
    return fit_of(MooncakeHook(worker))


def _p2p_tier() -> Fit:
    try:
        tier_classes()
    except ImportError as error:
        raise _NotUsedError("this vLLM has no such tier") from error
    return fit_of(P2pTierHook())


def _of_connector(hook: PartHook) -> Fit:
    try:
        list(hook.requires())
    except ImportError as error:
        raise _NotUsedError("this vLLM has no such connector") from error
    return fit_of(hook)


def _report(
    name: str, component: int, check: Callable[[], Fit], disabled: Collection[str], host: str = ""
) -> HookReport:
    host = host.rpartition(".")[2]
    if name in disabled:
        return HookReport(name, component, HookStatus.OFF, "disabled by PENSTOCK_HOOKS_DISABLED", host)
    try:
        fit = check()
    except _NotUsedError as error:
        return HookReport(name, component, HookStatus.NOT_USED, str(error), host)
    except (ImportError, AttributeError) as error:
        fit = Fit(f"{type(error).__name__}: {error}")
    status = HookStatus.LEFT_OUT if fit.unmet else HookStatus.FITS
    return HookReport(name, component, status, fit.unmet, host, fit.missing)


def _load(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
