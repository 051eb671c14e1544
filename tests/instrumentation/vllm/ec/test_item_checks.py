"""The comparison of loaded items on a worker: each element type, budget, and what is not asked for."""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec import fingerprints, item_checks
from penstock.instrumentation.vllm.ec.item_checks import Checksums
from penstock.instrumentation.vllm.messages import CheckedItem


def asked(**wanted: int | bytes) -> Any:
    """Return the metadata of a step that compares these."""
    return SimpleNamespace(penstock_checksums=wanted, penstock_enforced=True)


def sent(tensor: torch.Tensor) -> int:
    """Return the checksum of a tensor's bytes, as a producer computes it."""
    return zlib.crc32(bytes(tensor.contiguous().untyped_storage()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_equal_item_and_another_one(dtype: torch.dtype) -> None:
    """One bit is enough."""
    tensor = torch.randn(7, 16).to(dtype)
    parts = Checksums()
    parts.before_load(asked(a=sent(tensor), b=sent(tensor)))
    assert parts.enforced
    assert parts.fault("a", tensor) is None
    other = tensor.clone()
    other[3, 5] *= -1
    failure = parts.fault("b", other)
    assert failure is not None
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT)
    assert f"{sent(tensor):08x}" in failure.error_text
    assert parts.drain() == (CheckedItem("a", mismatched=False), CheckedItem("b", mismatched=True))
    assert parts.drain() == ()


def test_a_fingerprint() -> None:
    """It is compared in place of the CRC-32 where it is what the scheduler names."""
    tensor = torch.randn(700, 256).to(torch.bfloat16)
    wanted = fingerprints.of_item(bytes(tensor.untyped_storage()))
    parts = Checksums()
    parts.before_load(asked(a=wanted, b=wanted))
    assert parts.fault("a", tensor) is None
    tensor[699, 255] += 1
    failure = parts.fault("b", tensor)
    assert failure is not None
    assert wanted.hex() in failure.error_text
    assert parts.drain() == (CheckedItem("a", mismatched=False), CheckedItem("b", mismatched=True))


def test_a_view_counts_as_what_it_shows() -> None:
    """A tensor that is not contiguous has the checksum of its elements in their order."""
    base = torch.randn(8, 8)
    parts = Checksums()
    parts.before_load(asked(a=sent(base.T)))
    assert parts.fault("a", base.T) is None


def test_what_is_not_asked_for_is_not_compared() -> None:
    """Nor what an earlier step asked for."""
    parts = Checksums()
    parts.before_load(asked(a=1))
    parts.before_load(SimpleNamespace())
    assert parts.fault("a", torch.ones(2, 2)) is None
    assert not parts.enforced
    assert parts.drain() == ()


def test_a_step_that_has_compared_for_too_long_compares_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is not verified, and the next step begins anew."""
    monkeypatch.setattr(item_checks, "_COMPARE_SECONDS", 0.0)
    tensor = torch.ones(64, 64)
    parts = Checksums()
    for _ in range(2):
        parts.before_load(asked(a=sent(tensor), b=0))
        assert parts.fault("a", tensor) is None
        assert parts.fault("b", tensor) is None
        assert parts.drain() == (
            CheckedItem("a", mismatched=False),
            CheckedItem("b", mismatched=False, skipped=True),
        )
