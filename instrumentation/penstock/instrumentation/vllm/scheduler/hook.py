"""The hooks that put the mixin over vLLM's scheduler, and a factory for ``--scheduler-cls``.

``penstock.instrumentation.vllm.scheduler.create_scheduler`` is what ``--scheduler-cls`` takes where the patch of
the configuration is disabled or does not fit.
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import (
    AnyOf,
    Extension,
    InstanceState,
    Part,
    Patch,
    Requirement,
    instrumented,
    registry,
)
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import scheduler_differences
from penstock.instrumentation.vllm.scheduler.request_queue import queue_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.instrumentation.hooks import Need

_METHODS: Final[Sequence[tuple[str, tuple[str, ...]]]] = (
    ("schedule", ()),
    ("update_from_output", ("scheduler_output", "model_runner_output")),
    ("add_request", ("request",)),
    ("_handle_invalid_blocks", ("invalid_block_ids", "num_scheduled_tokens")),
    ("_try_schedule_encoder_inputs", ("request",)),
    ("_preempt_request", ("request", "timestamp")),
    ("_connector_finished", ("request",)),
    ("_free_request", ("request",)),
    ("_free_blocks", ("request",)),
)

# What the recovery of failed loads acts upon (kv/failure_planner.py, recovery/rewind.py).
_STATE: Final = (
    "failed_recving_kv_req_ids",
    "finished_recving_kv_req_ids",
    "kv_cache_manager",
    "prev_step_scheduled_req_ids",
    "recompute_kv_load_failures",
    "requests",
    "running",
)


class SchedulerHook:
    """What the mixin needs of one scheduler class; reported when vLLM resolves that class."""

    name = "scheduler"
    component = c.COMPONENT_SCHEDULER

    def __init__(self, scheduler_class: type) -> None:
        """Take *scheduler_class*, the one that vLLM resolved."""
        self._class = scheduler_class

    def requires(self) -> Iterable[Need | Part]:
        """Return the methods that the mixin extends, by their names of today or of before (``compat``)."""
        from penstock.instrumentation.vllm.scheduler.mixin import SchedulerMixin

        scheduler = self._class
        yield from (Requirement(scheduler, name, parameters) for name, parameters in _METHODS)
        yield AnyOf(
            (
                Requirement(scheduler, "_set_kv_fetch_stage", ("request", "stage")),
                Requirement(scheduler, "_update_from_kv_xfer_finished", ("kv_connector_output",)),
            )
        )
        yield InstanceState(scheduler, _STATE)
        yield AnyOf(
            (
                InstanceState(scheduler, ("encoder_cache_mismatch_reqs",)),
                InstanceState(scheduler, ("grammar_compile_error_reqs",)),
            )
        )
        yield from (
            Extension(mixin, scheduler) for mixin in (SchedulerMixin, *scheduler_differences(scheduler))
        )
        yield Part(
            "blocked_waiting",
            "waits for a grammar or for streaming input",
            (
                AnyOf(
                    (
                        Requirement(scheduler, "_handle_blocked_waiting_request", ("request",)),
                        Requirement(scheduler, "_try_promote_blocked_waiting_request", ("request",)),
                    )
                ),
            ),
        )
        yield queue_part(scheduler)

    def install(self) -> None:
        """Do nothing: :func:`instrument` makes the subclass."""

    def uninstall(self) -> None:
        """Do nothing: a scheduler that runs stays as it is, and is passive while Penstock is off."""


class SchedulerClassHook:
    """Wraps ``SchedulerConfig.get_scheduler_cls``."""

    name = "scheduler_class"
    component = c.COMPONENT_SCHEDULER

    def __init__(self) -> None:
        self._patch = Patch()

    def requires(self) -> Iterable[Need]:
        """Return the method that is patched."""
        from vllm.config.scheduler import SchedulerConfig

        return [Requirement(SchedulerConfig, "get_scheduler_cls")]

    def install(self) -> None:
        """Patch the configuration."""
        from vllm.config.scheduler import SchedulerConfig

        original = SchedulerConfig.get_scheduler_cls

        @functools.wraps(original)
        def get_scheduler_cls(config: Any) -> Any:
            return instrument(original(config))

        self._patch.set(SchedulerConfig, "get_scheduler_cls", get_scheduler_cls)

    def uninstall(self) -> None:
        """Restore the method; a scheduler that runs stays as it is, and is passive while Penstock is off."""
        self._patch.undo()


def instrument(scheduler_class: Any) -> Any:
    """Return the instrumented subclass of a scheduler class; a class that does not fit, or a factory, unchanged."""
    if not isinstance(scheduler_class, type):
        return scheduler_class
    settings = runtime.settings
    result: Any = scheduler_class
    with guard("scheduler_class"):
        if registry.install(SchedulerHook(scheduler_class), settings.hooks_disabled if settings else ()):
            from penstock.instrumentation.vllm.scheduler.mixin import SchedulerMixin

            # A class may refuse to be derived from: __init_subclass__, a metaclass.
            for mixin in (*scheduler_differences(scheduler_class), SchedulerMixin):
                result = instrumented(mixin, result)
    return result


def create_scheduler(*args: Any, **kwargs: Any) -> Any:
    """Build the scheduler that vLLM would choose by itself, instrumented; takes the arguments of its constructor."""
    config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    choice = copy.copy(config.scheduler_config)
    choice.scheduler_cls = None
    return instrument(choice.get_scheduler_cls())(*args, **kwargs)
