"""The order of the suite: whatever starts engines comes last, so that no engine takes the processor from another test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import MutableSequence


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: MutableSequence[pytest.Item]) -> None:
    """Put the tests of ``tests/e2e`` behind all others; the order is the same otherwise."""
    items[:] = sorted(items, key=lambda item: "e2e" in item.path.parts)
