"""Until 0.29: vLLM's V1 model runner asks an EC connector for no worker metadata, in which Penstock's worker reports."""

from __future__ import annotations

import inspect
from abc import ABC
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from penstock.instrumentation.hooks import Patch

_STEP: Final = "_get_ec_connector_output"
_ASKED: Final = "build_connector_worker_meta"


class EncoderReports(ABC):  # noqa: B024  (like the connectors' own base: the layouts must agree for a swap)
    """Over an EC connector in a worker, until 0.27: it has no worker metadata of its own."""

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* has none."""
        return not hasattr(owner, _ASKED)

    def build_connector_worker_meta(self) -> Any:
        """Return none: what Penstock's mixin extends."""
        return None


def ask_for_reports(patch: Patch, contain: AbstractContextManager[Any]) -> None:
    """Have the V1 model runner send a connector's worker metadata with each step, where it does not; *contain*: our errors."""
    from vllm.distributed.ec_transfer import get_ec_transfer
    from vllm.v1.worker.ec_connector_model_runner_mixin import ECConnectorModelRunnerMixin as Runner

    step: Callable[..., Any] = getattr(Runner, _STEP)
    if _ASKED in inspect.unwrap(step).__code__.co_names:
        return

    @contextmanager
    def with_report(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with step(*args, **kwargs) as output:
            yield output
        with contain:
            output.ec_connector_worker_meta = get_ec_transfer().build_connector_worker_meta()

    patch.set(Runner, _STEP, staticmethod(with_report))


def hears_all_ranks(scheduler: Any) -> bool:
    """Return whether the reports of all workers reach *scheduler*; until 0.27 those of one do."""
    if scheduler.vllm_config.parallel_config.world_size == 1:
        return True
    from vllm.v1.executor import abstract

    return hasattr(abstract, "ECOutputAggregator")
