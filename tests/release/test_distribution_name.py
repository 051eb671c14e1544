"""What package indexes call Penstock: never the name that another project has there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from penstock.proto.version import DISTRIBUTION

_ROOT = Path(__file__).resolve().parents[2]
# `penstock` where a distribution is meant: behind a verb of pip's, with an extra, in a requirement, or in a file's name.
_FORMER = re.compile(
    r"""(?:\b(?:pip|uv|pipx)\b[^\n]*\b(?:install|download|wheel|add)\b[^\n`]*?[\s'"])penstock(?![-_\w./])
    | \binstall\s+`?penstock(?![-_\w./])
    | \bpenstock\[[a-z]
    | \bpenstock\s?[=~>]=
    | \bpenstock-(?:\d|\*|\{[^}]*version[^}]*\}|…)[^\s"']*\.(?:whl|tar\.gz|dist-info)
    | \b(?:version|distribution|requires|files)\(["']penstock["']\)
    """,
    re.VERBOSE,
)


def _texts() -> dict[str, str]:
    """Return every text of the tree by its path; this file shows the former name."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=_ROOT, capture_output=True, text=True, check=True)
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = _ROOT / name
        if path.is_file() and path != Path(__file__):
            try:
                found[name] = path.read_text("utf-8")
            except UnicodeDecodeError:
                continue
    return found


def test_no_text_names_the_other_project() -> None:
    """Who follows it would install a stranger's code."""
    found = {
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}": match[0]
        for name, text in _texts().items()
        for match in _FORMER.finditer(text)
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "`pip install penstock` and more",
        "pip install 'penstock[agent]'",
        'pip install --target x "penstock"',
        "uv pip install penstock",
        "install penstock, set PENSTOCK_ENDPOINT",
        "penstock==0.1.0",
        "penstock-0.1.0-py3-none-any.whl",
        'root.glob("penstock-*.dist-info")',
        "importlib.metadata.version('penstock')",
    ],
)
def test_the_former_name_is_seen(text: str) -> None:
    """The look can fail."""
    assert _FORMER.search(text)


@pytest.mark.parametrize(
    "text",
    [
        f"pip install '{DISTRIBUTION}[agent]'",
        f"pip install {DISTRIBUTION}",
        "install -d -o penstock -g penstock /run/penstock",
        "pip install -e . && penstock-agent",
        "penstock_vllm-0.1.0-py3-none-any.whl",
        "from penstock.agent import x",
    ],
)
def test_what_is_not_it_is_not(text: str) -> None:
    """Commands, import names, users and directories keep their names."""
    assert not _FORMER.search(text)


def test_it_is_the_distributions() -> None:
    """What is built, and what the engine's plugins come from."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    (plugin,) = entry_points(group="vllm.general_plugins", name="penstock")
    assert plugin.dist is not None
    assert plugin.dist.name == DISTRIBUTION
