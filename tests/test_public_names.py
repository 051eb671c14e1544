"""The public names of every package: changing one is a decision, not a slip."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.test_import_rules import FLOORS, members, tree

GOLDEN = Path(__file__).parent / "golden" / "public_names.txt"


def faces() -> str:
    """Return a line for each package that has a face: its name, and the names that it exports."""
    found = [(tree(root), package) for root in sorted(FLOORS) for package in sorted(tree(root).packages)]
    named = [(package, members(there.modules[package])) for there, package in found]
    return "".join(f"{package}: {' '.join(names)}\n" for package, names in named if names)


def test_public_names_are_those_of_the_golden_file() -> None:
    """``python -m tests.test_public_names`` writes it anew."""
    assert faces() == GOLDEN.read_text()


if __name__ == "__main__":
    sys.stdout.write(f"{GOLDEN}\n")
    GOLDEN.write_text(faces())
