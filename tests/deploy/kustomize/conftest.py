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


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the objects of the cases by name, with the component; no test changes them."""
    found = documents(Checkout(tmp_path_factory.mktemp("cases")).build(CASES, "component"))
    return {each["metadata"]["name"]: each for each in found}
