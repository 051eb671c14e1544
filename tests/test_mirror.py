"""Tests lie where the code lies: a package has its tests at the same place below ``tests``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.test_import_rules import FLOORS, ROOT, tree

if TYPE_CHECKING:
    from pathlib import Path

TESTS = ROOT / "tests"
# What lies beside the tests of a package: browsers, JavaScript and recorded data.
_BESIDE = {"agent/metrics/golden", "agent/page/browser", "agent/page/js", "agent/page/js/fixtures"}


def place(module: str) -> Path:
    """Return the folder of the tests of a package, or of a module that has many."""
    return TESTS.joinpath(*module.split(".")[1:])


def folders(top: Path) -> set[Path]:
    """Return *top* and the folders below it that hold a file, without caches."""
    return {path.parent for path in top.rglob("*") if path.is_file() and path.parent.name != "__pycache__"}


@pytest.mark.parametrize("root", sorted(FLOORS))
def test_each_package_has_tests_at_its_place(root: str) -> None:
    """Those with a module beside the face; what opens only other packages has none."""
    found = tree(root)
    with_modules = {name.rpartition(".")[0] for name in found.modules if name not in found.packages}
    assert [package for package in sorted(with_modules) if not any(place(package).glob("test_*.py"))] == []


@pytest.mark.parametrize("root", sorted(FLOORS))
def test_each_folder_of_tests_has_its_code(root: str) -> None:
    """What has moved or gone leaves no tests behind."""
    places = {place(module) for module in tree(root).modules}
    beside = {TESTS / name for name in _BESIDE}
    assert folders(place(root)) - places - beside == set()
