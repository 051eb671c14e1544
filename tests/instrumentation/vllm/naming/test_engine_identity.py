"""Who an engine is, by its configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming.engine_identity import (
    engine_index,
    guess_role,
    model_name,
    worker_process,
)

from tests.support.engine.versions import from_version


def config(kv_role: str | None = None, ec_role: str | None = None, backend: str = "mp") -> Any:
    """Return as much of a VllmConfig as identity reads."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_index=3, distributed_executor_backend=backend),
        model_config=SimpleNamespace(served_model_name=["tiny", "alias"], model="/models/tiny"),
        kv_transfer_config=SimpleNamespace(kv_role=kv_role) if kv_role else None,
        ec_transfer_config=SimpleNamespace(ec_role=ec_role) if ec_role else None,
    )


@pytest.mark.parametrize(
    ("kv_role", "ec_role", "seen", "expected"),
    [
        (None, None, set(), ""),
        ("kv_producer", None, set(), "prefill"),
        ("kv_consumer", None, {c.ROLE_PREFILL}, "decode"),
        ("kv_both", None, set(), ""),
        ("kv_both", None, {c.ROLE_PREFILL}, "prefill"),
        ("kv_both", None, {c.ROLE_DECODE}, "decode"),
        ("kv_both", None, {c.ROLE_DECODE, c.ROLE_PREFILL}, "both"),
        ("kv_consumer", "ec_producer", set(), "encoder"),
        ("kv_consumer", "ec_consumer", set(), "decode"),
    ],
)
def test_guessed_role(kv_role: str | None, ec_role: str | None, seen: set[int], expected: str) -> None:
    """A role is guessed from the configuration, or from the requests where that does not tell."""
    assert guess_role(config(kv_role, ec_role), seen) == expected


def test_identity() -> None:
    """Engine index, model and process go by vLLM's own words."""
    assert engine_index(config()) == "3"
    assert model_name(config()) == "tiny"
    assert worker_process(config()) == "worker"
    assert worker_process(config(backend="uni")) == "engine-core"


@from_version(0, 28, "changes these fields one by one")
# Where this test is the first to compile with PyTorch.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_an_engine_of_a_dense_model_keeps_its_index() -> None:
    """VLLM makes each engine of a data-parallel server of a dense model believe that it is alone, but for its index."""
    from vllm.config import ParallelConfig

    parallel = ParallelConfig(data_parallel_size=2, data_parallel_rank=1)
    parallel.reconfigure_for_independent_dp_rank()
    assert (parallel.data_parallel_size, parallel.data_parallel_rank) == (1, 0)
    assert engine_index(SimpleNamespace(parallel_config=parallel)) == "1"
