"""What `make test-gpu` says where there is no GPU, and the page that it writes where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.gpu.agreement import agreement
from tests.support.gpu.document import MARK, Check, page, results
from tests.support.gpu.machine import NO_GPU, Machine, understood

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
MACHINE = Machine(("NVIDIA H200", "NVIDIA H200"), "580.1", {"vllm": "0.32.0", "torch": "2.13.0"})
FOUND = {
    "missing": [],
    "torch": "2.13.0",
    "cuda": "13.0",
    "gpus": ["NVIDIA H200"],
    "versions": {"vllm": "0.32.0", "nixl": "1.5.1"},
}


@pytest.fixture
def without_gpu(tmp_path: Path) -> Mapping[str, str]:
    """Give an environment whose nvidia-smi finds no GPU."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'No devices were found' >&2\nexit 6\n")
    smi.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


def run(*command: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in the root to its end."""
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_command_is_a_sentence_without_a_gpu(without_gpu: Mapping[str, str], tmp_path: Path) -> None:
    """It succeeds, and builds nothing."""
    venv = tmp_path / "venv"
    ran = run("scripts/test-gpu.sh", env={**without_gpu, "PENSTOCK_VENV_GPU": str(venv)})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"test-gpu: skipped. {NO_GPU}\n", "")
    assert not venv.exists()


def test_a_python_without_vllm_is_refused(tmp_path: Path) -> None:
    """PYTHON= is looked at: a sentence names what is missing and the command that installs it."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$2" in *vllm*) exit 1;; esac\n')
    python.chmod(0o755)
    ran = run("scripts/setup-gpu.sh", env={**os.environ, "PYTHON": str(python)})
    assert ran.returncode == 1
    assert f"{python} cannot import vllm; once: {python} -m pip install nixl==" in ran.stderr


def test_each_check_is_skipped_with_the_sentence(without_gpu: Mapping[str, str], tmp_path: Path) -> None:
    """Without a GPU no check fails, and the page stays as it is."""
    before = tmp_path / "gpu.md"
    before.write_text(MARK)
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/gpu")
    ran = run(
        *command, f"--basetemp={tmp_path / 'base'}", env={**without_gpu, "PENSTOCK_GPU_PAGE": str(before)}
    )
    last = ran.stdout.splitlines()[-1]
    assert ran.returncode == 0, ran.stdout
    assert " skipped" in last
    assert not {"passed", "failed", "error"} & set(last.split())
    assert NO_GPU in ran.stdout
    assert before.read_text() == MARK


def test_other_runs_do_not_collect_them(pytester_free: str) -> None:
    """Who does not name the directory does not even see its tests."""
    assert "tests/gpu/" not in pytester_free


@pytest.fixture
def pytester_free(without_gpu: Mapping[str, str]) -> str:
    """Give what pytest collects of the tests below two directories, of which one is the GPU's parent."""
    others = [
        f"--ignore={path}"
        for path in sorted((ROOT / "tests").iterdir())
        if path.is_dir() and path.name != "gpu"
    ]
    files = [f"--ignore={path}" for path in sorted((ROOT / "tests").glob("test_*.py"))]
    command = (
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    )
    return run(*command, *others, *files, "tests", env=without_gpu).stdout


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"missing": ["vllm", "nixl"]}, "cannot import vllm, nixl: run `make setup-gpu`"),
        ({**FOUND, "gpus": []}, "PyTorch 2.13.0 cannot use the GPU"),
    ],
)
def test_what_is_missing_is_a_sentence(found: Mapping[str, Any], words: str) -> None:
    """It names the command that helps."""
    said = understood("580.1", found)
    assert isinstance(said, str)
    assert words in said


def test_a_machine_is_what_its_python_can_use() -> None:
    """GPUs by name, driver, and the versions of what runs on them."""
    versions = {"vllm": "0.32.0", "nixl": "1.5.1", "torch": "2.13.0", "CUDA": "13.0"}
    assert understood("580.1", FOUND) == Machine(("NVIDIA H200",), "580.1", versions)


def test_the_page_says_what_ran_and_what_did_not() -> None:
    """A row for each check, with its reason; what was on the page before is gone but for its head."""
    checks = [
        Check("Reads blocks.", "passed", figures=["8 transfers", "2 ms each"]),
        Check("Rebalances.", "skipped", "one GPU\nis here"),
        Check("Recomputes.", "failed", "assert a | b"),
        Check("Takes turns."),
    ]
    written = page(
        f"# On a GPU\n\n{MARK}\nNot yet.\n", MACHINE, checks, date="2026-11-23 01:00 UTC", commit="abc"
    )
    assert written == (
        f"# On a GPU\n\n{MARK}\n"
        "Run on 2026-11-23 01:00 UTC at commit abc: 1 of 4 checks passed. GPUs: 2 (NVIDIA H200), driver\n"
        "580.1. Versions: torch 2.13.0, vllm 0.32.0.\n"
        "\n"
        "| check | result | figures |\n"
        "|---|---|---|\n"
        "| Reads blocks. | passed | 8 transfers; 2 ms each |\n"
        "| Rebalances. | skipped: one GPU is here |  |\n"
        "| Recomputes. | failed: assert a \\| b |  |\n"
        "| Takes turns. | not run |  |\n"
    )
    # A second run replaces the first one's.
    assert page(written, MACHINE, [], date="2", commit="d").count("Run on") == 1


def test_a_long_reason_is_cut() -> None:
    """A table stays readable."""
    lines = results(MACHINE, [Check("Reads.", "failed", "x" * 5000)], date="1", commit="c").splitlines()
    assert max(map(len, lines)) < 400


def test_the_page_in_the_repository_has_the_mark() -> None:
    """Else a run could not write its results."""
    assert (ROOT / "docs" / "gpu.md").read_text().count(MARK) == 1
    with pytest.raises(ValueError, match="no line"):
        page("# On a GPU\n", MACHINE, [], date="1", commit="c")


@pytest.mark.parametrize(("wrong", "holds"), [(0, True), (3, True), (4, False), (8, False)])
def test_more_than_half_must_agree(wrong: int, holds: bool) -> None:
    """A near tie may fall either way; answers from wrong blocks do not hold."""
    right = [str(index) for index in range(8)]
    found = agreement(["other"] * wrong + right[wrong:], right)
    assert found.holds is holds
    assert str(found).startswith(f"{8 - wrong} of 8")


def test_a_model_that_computes_nothing_is_no_reference() -> None:
    """With one answer to all prompts anything would agree."""
    with pytest.raises(ValueError, match="all the same"):
        agreement(["a", "a"], ["a", "a"])
