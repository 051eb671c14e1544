"""What README and the reference say of the commands is what the commands say of themselves."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from penstock.agent.daemon.config import OPTIONS

_ROOT = Path(__file__).parents[2]
_README = (_ROOT / "README.md").read_text()
_CONFIGURATION = (_ROOT / "docs/reference/configuration.md").read_text()
_FOLDED = " ".join(_README.split())
_ROW = re.compile(r"^\| (`--[^|]*)\|([^|]*)\|", re.MULTILINE)
_QUOTED = re.compile(r"`([^`]*)`")


def _table() -> dict[str, str]:
    """Return the flags of the table and their defaults, empty where there is none."""
    table: dict[str, str] = {}
    for flags, defaults in _ROW.findall(_CONFIGURATION):
        names, values = _QUOTED.findall(flags), _QUOTED.findall(defaults)
        table |= dict(zip(names, values or [""] * len(names), strict=True))
    return table


def test_every_flag_of_the_agent_is_in_the_table() -> None:
    """With its default; and none that the agent does not have."""
    assert _table() == {f"--{option.name}": option.default for option in OPTIONS}


def test_the_agents_part_is_what_the_readme_installs() -> None:
    """The engine's image gets the base, the sidecar the extra of that name."""
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "agent" in extras
    assert "`pip install penstock`" in _FOLDED
    assert "`pip install 'penstock[agent]'`" in _FOLDED
