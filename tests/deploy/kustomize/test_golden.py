"""What the overlays build, compared with a golden file; ``python -m tests.deploy.kustomize.test_golden`` writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from penstock.proto import __version__

from tests.support.kubernetes.builds import KUSTOMIZE, ROOT, VERSIONS, build

GOLDEN = Path(__file__).parent / "golden"
OVERLAYS = ("overlays/plain", "overlays/llm-d", "overlays/leader-worker-set", "daemonset/agent", "relay")


def golden(overlay: str) -> Path:
    """Return the golden file of an overlay."""
    return GOLDEN / f"{overlay.replace('/', '-')}.yaml"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay(overlay: str, version: str) -> None:
    """The oldest and the newest kubectl build the same."""
    assert build(KUSTOMIZE / overlay, version) == golden(overlay).read_text()


def test_generated_files_are_up_to_date() -> None:
    """``make kustomize`` would change nothing."""
    done = subprocess.run(
        [sys.executable, "scripts/kustomize.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_are_of_this_version(overlay: str) -> None:
    """A release changes the tags in the kustomizations."""
    images = [
        line.split()[-1] for line in golden(overlay).read_text().splitlines() if "ghcr.io/penstock/" in line
    ]
    assert images
    assert {image.partition(":")[2] for image in images} == {__version__}


if __name__ == "__main__":
    for each in OVERLAYS:
        golden(each).write_text(build(KUSTOMIZE / each))
