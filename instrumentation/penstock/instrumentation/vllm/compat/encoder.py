"""Encoder outputs: reports, widths, embeddings, placeholders.

Until 0.29: vLLM's V1 model runner asks an EC connector for no worker metadata, in which Penstock's worker reports
(:class:`EncoderReports`, :func:`ask_for_reports`).
Until 0.29: vLLM has no object that tells which fields of a modality are no media (:func:`placeholder_fields`).
Until 0.30: vLLM's encoder cache does not keep how many embeddings an item has; it asks the request (:func:`forget_embeds`).
Until 0.31: vLLM does not measure how wide a model's encoder outputs are, by modality (:func:`encoder_widths`).
"""

from __future__ import annotations

import inspect
from abc import ABC
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
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


def encoder_widths(transfer_config: Any) -> Mapping[str, int]:
    """Return the widths that vLLM has measured, by modality; none where it measures none."""
    return getattr(transfer_config, "mm_encoder_output_widths", None) or {}


def forget_embeds(encoder_cache_manager: Any, item: str) -> None:
    """Forget how many embeddings *item* has, which has left the cache."""
    known: dict[str, int] | None = getattr(encoder_cache_manager, "num_embeds_by_hash", None)
    if known is not None:
        known.pop(item, None)


class _PlaceholderFields:
    """The fields of one model, as ``PlaceholderMetadataResolver`` of a newer vLLM tells them."""

    def __init__(self, model_config: Any) -> None:
        self._model_config = model_config
        self._found: dict[str, set[str]] = {}

    def fields_for(self, modality: str) -> set[str]:
        """Return the names of those from which a place in the prompt is computed; none where vLLM cannot tell, as in its own."""
        if modality not in self._found:
            self._found[modality] = set()
            with suppress(Exception):
                self._found[modality] = self._ask(modality)
        return self._found[modality]

    def _ask(self, modality: str) -> set[str]:
        from vllm.multimodal import MULTIMODAL_REGISTRY

        parser = MULTIMODAL_REGISTRY.create_processor(self._model_config).info.data_parser
        # Until 0.27 there is none: each request has its media.
        tell = getattr(parser, "placeholder_metadata_fields", None)
        return set() if tell is None else set(tell(modality))


def placeholder_fields(model_config: Any) -> Any:
    """Return what has vLLM's ``fields_for(modality)`` for the model of *model_config*."""
    try:
        from vllm.distributed.ec_transfer.ec_connector.utils import PlaceholderMetadataResolver
    except ImportError:
        return _PlaceholderFields(model_config)
    return PlaceholderMetadataResolver(model_config)
