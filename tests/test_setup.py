"""``scripts/setup.sh`` over an environment that is there already."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "setup.sh"
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
THIS = f"{MINOR} of {sys.base_prefix}"
# Is asked what it is, and builds nothing: the script ends there.
NO_VENV = f'#!/bin/sh\n[ "$1" = -m ] && exit 1\nexec {sys.executable} "$@"\n'


def program(path: Path, text: str) -> Path:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("old", "words"),
    [
        (
            "#!/bin/sh\necho 3.9 of /usr\n",
            f"was made by Python 3.9 of /usr, this is Python {THIS}: it is built anew",
        ),
        (f"#!/bin/sh\necho {MINOR} of /opt/another\n", f"was made by Python {MINOR} of /opt/another, this"),
        ("#!/nowhere/python\n", "was made by Python (which does not run any more)"),
        (f"#!/bin/sh\necho {THIS}\n", ""),
    ],
)
def test_an_environment_of_another_python_is_built_anew(tmp_path, old, words):
    """A sentence, and nothing of the old one is left; one of the same Python stays."""
    venv = tmp_path / "venv"
    program(venv / "bin" / "python", old)
    (venv / "pyvenv.cfg").touch()
    python = program(tmp_path / "python", NO_VENV)
    result = subprocess.run(
        ["bash", str(SCRIPT)],
        env={**os.environ, "PYTHON": str(python), "PENSTOCK_VENV": str(venv)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1
    assert "a virtual environment" in result.stderr
    assert words in result.stdout
    assert (venv / "pyvenv.cfg").exists() is not bool(words)


def test_what_is_no_environment_is_left_alone(tmp_path):
    """Whatever PENSTOCK_VENV names."""
    kept = tmp_path / "place" / "kept"
    kept.parent.mkdir()
    kept.touch()
    python = program(tmp_path / "python", NO_VENV)
    subprocess.run(
        ["bash", str(SCRIPT)],
        env={**os.environ, "PYTHON": str(python), "PENSTOCK_VENV": str(kept.parent)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert kept.exists()
