"""A user's checkout, and the pods of the cases with the component."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes.builds import Checkout, documents

CASES = (Path(__file__).parent / "cases" / "pods.yaml").read_text()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Return a directory with the components and a place for manifests."""
    return Checkout(tmp_path)


@pytest.fixture
def cases(checkout: Checkout) -> dict[str, Any]:
    """Return the objects of the cases by name, with the component."""
    found = documents(checkout.build(CASES, "component"))
    return {each["metadata"]["name"]: each for each in found}
