"""A recipe of CONTRIBUTING.md as data: its edits, the targets of make and the tests that it names; and a copy to apply it to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# What the recipes touch, what that imports, and what their commands read and write.
_COPIED = ("agent", "instrumentation", "proto", "scripts", "dashboards", "deploy", "docs", "tests")
_FILES = ("Makefile", "pyproject.toml", "CHANGELOG.md", "README.md", "CONTRIBUTING.md")
# No recipe reads them, and they are two thirds of the bytes.
_LEFT_OUT = ("tests/golden", "tests/fuzz", "tests/release", "docs/images", "tests/agent/page")
# Where Python finds the packages of the copy: before what is installed.
_IMPORTED = ("agent", "instrumentation", "proto", "")
GENERATOR = ROOT / ".venv-proto"
_SECONDS = 120


class Edit(NamedTuple):
    """One insertion.

    Attributes:
        path: of the file, below the root.
        anchor: text that the file has exactly once; empty for a new file, or for the end of one.
        after: what is inserted behind the anchor.
        before: what is inserted before it.
        instead: what takes its place; the anchor itself where this is None.

    """

    path: str
    anchor: str
    after: str = ""
    before: str = ""
    instead: str | None = None


class Recipe(NamedTuple):
    """A section of CONTRIBUTING.md that a test carries out.

    Attributes:
        title: the heading.
        edits: in the order of the steps.
        make: the targets of make that the steps name, in their order.
        checks: tests that have to pass in the copy afterwards: paths, or ids of pytest.

    """

    title: str
    edits: tuple[Edit, ...]
    make: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def paths(self) -> set[str]:
        """The files that the edits touch."""
        return {edit.path for edit in self.edits}


class RecipeError(AssertionError):
    """A recipe does not fit the tree any more."""


def apply(edits: tuple[Edit, ...], copy: Path) -> None:
    """Carry out *edits* below *copy*.

    Raises:
        RecipeError: a file or its anchor is not there, or the anchor is there twice.

    """
    for edit in edits:
        file = copy / edit.path
        if not edit.anchor:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text((file.read_text() if file.exists() else "") + edit.after)
            continue
        if not file.exists():
            raise RecipeError(f"{edit.path} is not there: move the path in tests/recipes and CONTRIBUTING.md")
        text = file.read_text()
        found = text.count(edit.anchor)
        if found != 1:
            raise RecipeError(
                f"{edit.path} has the anchor {found} times, not once: correct the edit in tests/recipes and the step in"
                f" CONTRIBUTING.md\n{edit.anchor}"
            )
        kept = edit.anchor if edit.instead is None else edit.instead
        file.write_text(text.replace(edit.anchor, f"{edit.before}{kept}{edit.after}"))


def copied(directory: Path) -> Path:
    """Copy the parts of the tree that recipes need; compiled modules come along, environments are linked."""
    copy = directory / "tree"
    copy.mkdir()
    left_out = {ROOT / name for name in _LEFT_OUT}

    def ignored(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if Path(folder, name) in left_out}

    for name in _COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in _FILES:
        shutil.copy2(ROOT / name, copy / name)
    (copy / ".venv").symlink_to(sys.prefix)
    if GENERATOR.exists():
        (copy / GENERATOR.name).symlink_to(GENERATOR)
    return copy


def run(copy: Path, *command: str) -> str:
    """Run *command* in *copy*, on the packages of the copy; its output.

    Raises:
        RecipeError: it fails.

    """
    env = {
        name: value
        for name, value in os.environ.items()
        # Of the make and the pytest that run this test, and of engines' settings.
        if not name.startswith(("MAKE", "MFLAGS", "PENSTOCK_", "PYTEST_", "OTEL_")) and name != "LD_PRELOAD"
    }
    env["PYTHONPATH"] = ":".join(str(copy / name) for name in _IMPORTED)
    done = subprocess.run(
        command,
        cwd=copy,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RecipeError(f"{' '.join(command)} ends with {done.returncode}:\n{done.stdout}")
    return done.stdout


def make(copy: Path, *targets: str) -> str:
    """Run targets of the copy's Makefile; the environment is as it is."""
    return run(copy, "make", "-o", "setup", *targets)


def require_the_copy(copy: Path) -> None:
    """Fail unless a program that is run in *copy* imports the packages of the copy.

    Raises:
        RecipeError: it imports others.

    """
    names = (
        "penstock.agent",
        "penstock.instrumentation",
        "penstock.proto",
        "penstock.rules",
        "tests.recipes",
    )
    program = f"import importlib\nfor name in {names}: print(*importlib.import_module(name).__path__)"
    for place in run(copy, sys.executable, "-c", program).split():
        if not Path(place).is_relative_to(copy):
            raise RecipeError(f"a program in {copy} imports {place}")
