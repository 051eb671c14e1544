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
# Builds what only looks like an environment; pip writes down what it is asked for, and fails where REFUSED is in that.
FAKE = f"""#!/bin/sh
case "$1 $2" in
"-m venv")
    mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; touch "$3/pyvenv.cfg"
    [ -f "$3/bin/tool" ] || printf '#!%s/bin/python\\n' "$(realpath "$3")" >"$3/bin/tool"; exit ;;
"-m pip")
    echo "$*" >>"$ASKED"
    case "$*" in *show*) exit 1 ;; esac
    for refused in $REFUSED; do case "$*" in *"$refused"*) exit 1 ;; esac; done; exit ;;
"-c import nixl"*) exit ;;
esac
exec {sys.executable} "$@"
"""


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
        pytest.param(
            f"#!/bin/sh\necho {MINOR} of /opt/another\n",
            f"was made by Python {MINOR} of /opt/another, this",
            marks=pytest.mark.long,
        ),
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


class FakeBuild:
    """The script over a Python whose pip installs nothing."""

    def __init__(self, directory: Path) -> None:
        self._python = program(directory / "python", FAKE)
        self._asked = directory / "asked"

    def run(self, venv: Path, refused: str = "") -> tuple[str, list[str]]:
        """Return what it printed, and what pip was asked to install."""
        self._asked.write_text("")
        result = subprocess.run(
            ["bash", str(SCRIPT)],
            env={
                **os.environ,
                "PYTHON": str(self._python),
                "PENSTOCK_VENV": str(venv),
                "ASKED": str(self._asked),
                "REFUSED": refused,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        asked = [line.partition(" install ")[2] for line in self._asked.read_text().splitlines()]
        return result.stdout, [each for each in asked if each]


def test_a_moved_environment_is_repaired(tmp_path):
    """Its programs name the new place; nothing is installed anew, and its log stays."""
    build = FakeBuild(tmp_path)
    old, new = tmp_path / "old", tmp_path / "new"
    said, asked = build.run(old)
    assert "done in" in said
    assert len(asked) == 3
    assert build.run(old) == ("", [])
    log = (old / "setup.log").read_text()

    old.rename(new)
    said, asked = build.run(new)
    assert f"was moved from {old}: its programs name the new place now" in said
    assert asked == []
    assert (new / "bin" / "tool").read_text() == f"#!{new}/bin/python\n"
    assert (new / "setup.log").read_text().startswith(log)
    assert build.run(new) == ("", [])


def test_the_environment_of_another_checkout_gets_this_ones_penstock(tmp_path):
    """And nothing else; a link to an environment is where it leads."""
    build = FakeBuild(tmp_path)
    build.run(tmp_path / "venv")
    stamp = tmp_path / "venv" / ".penstock-setup"
    stamp.write_text(stamp.read_text().replace(str(SCRIPT.parents[1]), "/another/checkout", 1))
    (tmp_path / "link").symlink_to("venv")
    said, asked = build.run(tmp_path / "link")
    assert "was that of the checkout /another/checkout" in said
    assert asked == ["--no-deps -e ."]


def test_changed_requirements_build_anew_and_keep_the_last_log(tmp_path):
    """What was built before may be what one looks for."""
    build = FakeBuild(tmp_path)
    build.run(tmp_path / "venv")
    stamp = tmp_path / "venv" / ".penstock-setup"
    stamp.write_text("another\n" + stamp.read_text().partition("\n")[2])
    _, asked = build.run(tmp_path / "venv")
    assert len(asked) == 3
    assert (tmp_path / "venv" / "setup.log.before").exists()


def test_without_a_build_for_cpu_the_ordinary_one_is_taken(tmp_path):
    """Neither of the two sources has it: vLLM is installed without its pin, then what it needs besides."""
    venv = tmp_path / "venv"
    said, asked = FakeBuild(tmp_path).run(venv, "scripts/requirements-torch.txt")
    assert "The ordinary build does as well" in said
    assert [each.split(" ")[0:2] for each in asked[:2]] == [["-r", "scripts/requirements-torch.txt"]] * 2
    assert asked[2:5] == [
        f"-r {venv}/requirements-torch.txt",
        "--no-deps -r scripts/requirements-engine.txt",
        f"-r {venv}/requirements-engine.txt",
    ]
    assert "+cpu" not in (venv / "requirements-torch.txt").read_text().partition("torch==")[2]
    needs = (venv / "requirements-engine.txt").read_text()
    assert "transformers" in needs
    assert "torch" not in needs.replace("flashinfer", "")
