"""``penstock-stage``: all of the engine part or nothing, and the pod starts in any case."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.deploy.payloads import run_stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Stops for good at the rename that it is told: what a killed init container leaves.
_KILLED = """
import os, pathlib, runpy, sys
path, target, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
rename = pathlib.Path.rename
def count(self, target):
    global left
    if left == 0:
        os._exit(9)
    left -= 1
    return rename(self, target)
pathlib.Path.rename = count
sys.argv = [path, target]
runpy.run_path(path, run_name="__main__")
"""


def names(directory: Path) -> list[str]:
    """Return what is in a directory."""
    return sorted(path.name for path in directory.iterdir())


def test_what_is_staged(payload: Path, tmp_path: Path) -> None:
    """The engine part, the rules, the wire contract, the entry point and the fallback; readable for every user, no agent."""
    target = tmp_path / "engine"
    previous = os.umask(0o077)
    try:
        assert f"is in {target}: " in run_stage(payload, target)
    finally:
        os.umask(previous)
    (metadata,) = target.glob("penstock_vllm-*.dist-info")
    assert names(target) == sorted([metadata.name, "penstock", "penstock-fallback", "penstock_payload.py"])
    assert names(target / "penstock") == ["instrumentation", "proto", "rules"]
    for path in target.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_a_second_time(payload: Path, tmp_path: Path) -> None:
    """A container that starts again leaves a whole engine part alone, and repairs a damaged one."""
    target = tmp_path / "engine"
    run_stage(payload, target)
    before = (target / "penstock_payload.py").stat().st_ino
    assert "already" in run_stage(payload, target)
    assert (target / "penstock_payload.py").stat().st_ino == before
    (target / "penstock" / "proto" / "version.py").write_text("")
    assert "already" not in run_stage(payload, target)
    assert "already" in run_stage(payload, target)


def test_another_version_and_files_of_others(slim_payload: Path, staged: Path) -> None:
    """An older engine part is replaced, none of its files stay; what is not Penstock's stays."""
    (old,) = staged.glob("penstock_vllm-*.dist-info")
    old.rename(staged / "penstock_vllm-0.0.1.dist-info")
    (staged / "penstock" / "removed.py").touch()
    (staged / ".penstock-staging-killed").mkdir()
    (staged / "lost+found").mkdir()
    run_stage(slim_payload, staged)
    assert names(staged) == sorted([old.name, "lost+found", "penstock", "penstock_payload.py"])
    assert not (staged / "penstock" / "removed.py").exists()


@pytest.mark.parametrize("renames", range(3))
def test_a_stage_that_is_killed(slim_payload: Path, tmp_path: Path, renames: int) -> None:
    """Before the last rename there is no entry point; the next attempt completes it."""
    target = tmp_path / "engine"
    command = [
        sys.executable,
        "-c",
        _KILLED,
        str(slim_payload / "penstock_stage.py"),
        str(target),
        str(renames),
    ]
    assert subprocess.run(command, timeout=120, check=False).returncode == 9
    assert not list(target.glob("penstock_vllm-*.dist-info"))
    run_stage(slim_payload, target)
    assert len(names(target)) == 3


def truncated(payload: Path) -> None:
    """Cut a file of the image in half."""
    file = payload / "tree" / "penstock" / "instrumentation" / "runtime.py"
    file.write_bytes(file.read_bytes()[:1_000])


def without_a_file(payload: Path) -> None:
    """Remove a file of the image."""
    (payload / "tree" / "penstock_payload.py").unlink()


def without_a_record(payload: Path) -> None:
    """Remove the list of files."""
    next(payload.glob("tree/*.dist-info/RECORD")).unlink()


def empty(payload: Path) -> None:
    """Remove all."""
    shutil.rmtree(payload / "tree")


@pytest.mark.parametrize("damage", [truncated, without_a_file, without_a_record, empty])
def test_a_damaged_payload(
    slim_payload: Path, tmp_path: Path, damage: Callable[[Path], None], staged: Path
) -> None:
    """Nothing is staged, and what was there is gone: a sentence says so."""
    payload = shutil.copytree(slim_payload, tmp_path / "payload")
    damage(payload)
    # Another content, so that it is not there already.
    (staged / "penstock_payload.py").write_text("")
    said = run_stage(payload, staged)
    assert "no engine part is staged, vLLM starts without Penstock: " in said
    assert not list(staged.glob("*penstock*"))


def test_a_volume_that_is_full(slim_payload: Path, tmp_path: Path) -> None:
    """A write that fails half-way leaves nothing behind."""
    target = tmp_path / "engine"
    said = run_stage(slim_payload, target, "prlimit", "--fsize=4096")
    assert "File too large" in said
    assert names(target) == []


def test_a_target_that_is_none(slim_payload: Path, tmp_path: Path) -> None:
    """A file in the target's place stays, and the pod starts."""
    target = tmp_path / "engine"
    target.write_text("kept")
    assert "vLLM starts without Penstock" in run_stage(slim_payload, target)
    assert target.read_text() == "kept"
