"""Whether an input can be encoded in this engine."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.vllm.ec import pending_items
from penstock.instrumentation.vllm.ec.pending_items import LocalMedia

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeScheduler = Callable[..., Any]


@pytest.mark.parametrize(
    ("data", "has"),
    [
        (None, False),
        ({}, False),
        ({"grid": 1}, False),
        ({"grid": 1, "pixels": None}, False),
        ({"grid": 1, "pixels": 2}, True),
    ],
)
def test_local_media(data: dict[str, Any] | None, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tells only the size of an input's place in the prompt is no media."""
    fields_of = SimpleNamespace(fields_for=lambda _: {"grid"})
    monkeypatch.setattr(pending_items, "placeholder_fields", lambda _: fields_of)
    fields = None if data is None else {key: SimpleNamespace(data=value) for key, value in data.items()}
    assert LocalMedia(None).has(SimpleNamespace(data=fields, modality="image")) is has
