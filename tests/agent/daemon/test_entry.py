"""The installed commands, with all that they need and without."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from penstock.agent import __main__ as entry

_ROOT = Path(__file__).parents[3]
_ROOTS = [str(_ROOT / name) for name in ("agent", "instrumentation", "proto")]
# What `pip install penstock-vllm` brings, and what gRPC itself needs.
_BASE = ("grpc", "google", "typing_extensions")


def _place(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    return (
        Path(spec.origin)
        if spec.origin and not spec.submodule_search_locations
        else Path(next(iter(spec.submodule_search_locations or ())))
    )


def _run(directory: Path, packages: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with nothing but its standard library, Penstock and *packages*."""
    for name in packages:
        place = _place(name)
        directory.joinpath(place.name).symlink_to(place)
    code = f"import sys; sys.path[:0] = {[*_ROOTS, str(directory)]!r}; from penstock.agent import __main__ as entry; entry.{arguments[0]}()"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *arguments[1:]],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("packages", "arguments", "missing"),
    [
        (_BASE, ("agentctl", "get", "engines"), "agentctl: click"),
        (_BASE, ("agent", "--version"), "penstock-agent: click"),
        # vLLM's image has click; the rest is missed later.
        ((*_BASE, "click", "yaml"), ("agent", "--state-dir=/nowhere"), "penstock-agent: structlog"),
    ],
)
def test_the_engines_part_alone(
    tmp_path: Path, packages: tuple[str, ...], arguments: tuple[str, ...], missing: str
) -> None:
    """One sentence that says what to install; no traceback."""
    result = _run(tmp_path, packages, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"{missing} is not installed: only the engine's part of Penstock is here; "
        "install the rest with: pip install 'penstock-vllm[agent]'\n"
    )


def test_the_commands_begin_there() -> None:
    """Those that are installed, and the module that can be run."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    for target in project["scripts"].values():
        module, _, function = target.partition(":")
        assert module == entry.__name__
        assert callable(getattr(entry, function))
    result = subprocess.run(
        [sys.executable, "-m", "penstock.agent", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.startswith("penstock-agent ")
