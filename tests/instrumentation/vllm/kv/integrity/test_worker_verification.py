"""One rank's digests: what has none, and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.kv.nixl import verification
from penstock.instrumentation.vllm.kv.nixl.verification import WorkerVerification
from penstock.instrumentation.vllm.messages import DigestOrder, GroupBlocks

SIZE = 4


def _worker(*, method: str = "", is_mla: bool = False) -> Any:
    """Return the second of two ranks; with MLA it has all of the content."""
    return SimpleNamespace(
        _has_mamba=False,
        _mixed_mem_types=False,
        _physical_blocks_per_logical_kv_block=1,
        vllm_config=SimpleNamespace(speculative_config=SimpleNamespace(method=method) if method else None),
        transfer_topo=SimpleNamespace(
            tp_rank=1, tp_size=2, is_mla=is_mla, total_num_kv_heads=1 if is_mla else 2
        ),
        kv_cache_config=SimpleNamespace(transfer_group_index_by_layer={"layer": 0}),
        device_kv_caches={"layer": torch.ones(8, 1, SIZE, 8)},
        _layer_specs=("layer",),
        block_size=SIZE,
    )


def _digests(worker: Any, *blocks: int) -> list[Any]:
    """Let a worker digest an order of each of *blocks*; an order may name a block that there is not."""
    found = WorkerVerification()
    orders = tuple(DigestOrder(f"r{n}", (GroupBlocks((n,), SIZE),), n) for n in blocks)
    found.take_orders(SimpleNamespace(penstock_digest=orders))
    found.begin()
    found.compute_digests(worker)
    assert [each.number for each in found.digests] == list(blocks)
    return list(found.digests)


@pytest.mark.parametrize(("is_mla", "heads"), [(False, (1,)), (True, (0,))])
def test_heads_of_the_second_rank(is_mla: bool, heads: tuple[int, ...]) -> None:
    """With MLA each rank has the only head."""
    (digest,) = _digests(_worker(is_mla=is_mla), 1)
    assert (digest.heads, digest.problem) == (heads, "")


@pytest.mark.parametrize(("method", "has_one"), [("eagle", False), ("draft_model", False), ("ngram", True)])
def test_a_draft_model_s_kv_may_be_written_after_the_digest(method: str, has_one: bool) -> None:
    """So there is none, unless nothing has KV of its own."""
    (digest,) = _digests(_worker(method=method), 1)
    assert (not digest.problem) is has_one


def test_a_step_s_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is digested, whatever it takes; those that find no time left say so."""
    now = iter((0.0, 1.0, 2.0))
    monkeypatch.setattr(verification, "time", SimpleNamespace(monotonic=lambda: next(now)))
    problems = [each.problem for each in _digests(_worker(), 1, 2, 3)]
    assert [bool(each) for each in problems] == [False, True, True]
    assert "too much" in problems[1]


def test_an_error_costs_no_other_request_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own digest says that there is none."""
    monkeypatch.setattr(guard, "raising", False)
    monkeypatch.setattr(verification, "BUDGET", 60.0)
    problems = [each.problem for each in _digests(_worker(), 1, 99, 3)]
    assert [bool(each) for each in problems] == [False, True, False]
