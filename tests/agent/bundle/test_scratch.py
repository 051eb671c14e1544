"""What a killed process has unpacked is removed by the next one; what a living one has stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.agent.bundle import ScratchDirectory

# Unpacks something, says where, and waits to be killed.
_HOLDER = """
import sys
from penstock.agent.bundle import ScratchDirectory
held = ScratchDirectory(sys.argv[1])
(held.path / "state").mkdir()
(held.path / "state" / "journal.db").write_bytes(b"x" * 1000)
print(held.path, flush=True)
sys.stdin.read()
"""


def _holder(place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _HOLDER, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _held(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_after_a_kill(tmp_path: Path) -> None:
    """Its directory goes with the next one that is made, and not that of a process that lives."""
    with _holder(tmp_path) as killed, _holder(tmp_path) as living:
        gone, kept = _held(killed), _held(living)
        with ScratchDirectory(str(tmp_path)) as own:
            assert gone.exists()
            assert kept.exists()
            assert own.path.stat().st_mode & 0o777 == 0o700
        killed.kill()
        killed.wait(60)
        with ScratchDirectory(str(tmp_path)) as own:
            assert sorted(tmp_path.iterdir()) == sorted([kept, own.path])
        assert (kept / "state" / "journal.db").exists()
        living.kill()
        living.wait(60)
    ScratchDirectory(str(tmp_path)).cleanup()
    assert not list(tmp_path.iterdir())


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """Other names, a directory without a lock, a link to a directory or of a lock, and a file of the name."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".lock").touch()
    place = tmp_path / "place"
    (place / "penstock-bundle-old").mkdir(parents=True)
    (place / "penstock-bundle-link").symlink_to(elsewhere)
    (place / "penstock-bundle-locked").mkdir()
    (place / "penstock-bundle-locked" / ".lock").symlink_to(elsewhere / ".lock")
    (place / "penstock-bundle-file").touch()
    before = sorted(place.iterdir())
    with ScratchDirectory(str(place)):
        pass
    assert sorted(place.iterdir()) == before
    assert (elsewhere / ".lock").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """It is an error of the system."""
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="Permission denied"):
        ScratchDirectory(str(tmp_path))
