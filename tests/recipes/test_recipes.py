"""The recipes of CONTRIBUTING.md, each carried out on a copy of the tree: when the code moves, its recipe fails here."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.recipes import alert, column, command, condition, counter, edits, event, policy_field, reason
from tests.recipes.edits import ROOT, Edit, Recipe, RecipeError

if TYPE_CHECKING:
    from pathlib import Path

_MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (event, counter, column, policy_field, condition, alert, reason, command)
}
# It has all kinds of steps; the others are for long runs.
_ALWAYS = "counter"
_SECTION = re.compile(r"^## (?P<title>.+)\n(?P<text>(?:(?!## ).*\n)*)", re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_FOLDERS = ("agent", "dashboards", "deploy", "docs", "instrumentation", "proto", "scripts", "tests")


def section(title: str) -> str:
    """Return the text below a heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return {found["title"]: found["text"] for found in _SECTION.finditer(text)}[title]


def files_of(text: str) -> set[str]:
    """Return the files that code spans of *text* name, as paths below the root."""
    return {span for span in _SPAN.findall(text) if span.startswith(tuple(f"{name}/" for name in _FOLDERS))}


def targets_of(text: str) -> list[str]:
    """Return the targets of make that code spans of *text* name, in their order."""
    return [span.removeprefix("make ") for span in _SPAN.findall(text) if span.startswith("make ")]


@pytest.mark.parametrize("name", _MODULES)
def test_the_document_names_the_files_of_the_recipe(name: str) -> None:
    """All that its edits touch, and no other; and the targets of make that it needs."""
    recipe: Recipe = _MODULES[name].RECIPE
    text = section(recipe.title)
    assert files_of(text) == recipe.paths
    assert targets_of(text) == list(recipe.make)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name != _ALWAYS)) for name in _MODULES]
)
def test_a_recipe_works(name: str, tmp_path: Path) -> None:
    """Its edits fit, its commands run, the tests that it names pass, and what it adds is there from end to end."""
    recipe: Recipe = _MODULES[name].RECIPE
    if "proto" in recipe.make and not edits.GENERATOR.exists():
        pytest.skip("no .venv-proto, the environment of the generator: make check-proto builds it")
    copy = edits.copied(tmp_path)
    edits.apply(recipe.edits, copy)
    edits.require_the_copy(copy)
    if recipe.make:
        edits.make(copy, *recipe.make)
    if recipe.checks:
        edits.run(copy, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *recipe.checks)
    edits.run(copy, sys.executable, "-m", f"tests.recipes.{name}")


@pytest.mark.parametrize(("text", "found"), [("one\n", 0), ("anchor\nanchor\n", 2)])
def test_an_edit_that_does_not_fit_says_so(text: str, found: int, tmp_path: Path) -> None:
    """Its anchor is gone, or is there twice."""
    (tmp_path / "file.py").write_text(text)
    with pytest.raises(RecipeError, match=f"file.py has the anchor {found} times, not once"):
        edits.apply((Edit("file.py", "anchor", after="more"),), tmp_path)
    assert (tmp_path / "file.py").read_text() == text


def test_an_edit_of_a_file_that_has_moved_says_so(tmp_path: Path) -> None:
    """The sentence names the path, and where to correct it."""
    with pytest.raises(RecipeError, match=r"file\.py is not there: move the path in tests/recipes"):
        edits.apply((Edit("file.py", "anchor"),), tmp_path)
