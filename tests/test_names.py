"""One meaning a name: no class twice in a product root, no module beside the few that belong there."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest

from tests.test_import_rules import FLOORS, parsed, tree

MODULES_OF_A_ROOT = {
    "penstock.agent": {
        "__main__",
        "badness",
        "durations",
        "errors",
        "limits",
        "model",
        "prescan",
        "aio",
    },
    "penstock.instrumentation": {"check", "drain", "plugin", "orders", "runtime"},
    "penstock.rules": {
        "circuit_breaker",
        "deadlines",
        "decisions",
        "decode",
        "field_bounds",
        "measured_times",
        "policy",
        "quarantine",
        "recompute_budget",
        "recompute_storm",
        "reflexes",
    },
}


@pytest.mark.parametrize("root", sorted(FLOORS))
def test_no_class_has_the_name_of_another(root: str) -> None:
    """Private and nested classes included."""
    places = defaultdict(list)
    for module, path in tree(root).modules.items():
        for node in ast.walk(parsed(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("root", sorted(FLOORS))
def test_what_lies_in_a_root(root: str) -> None:
    """All else has a room."""
    found = tree(root)
    beside = {module.removeprefix(f"{root}.") for module in found.modules if module not in found.packages}
    assert {name for name in beside if "." not in name} == MODULES_OF_A_ROOT[root]
