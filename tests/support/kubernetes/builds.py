"""``kubectl kustomize`` and ``helm`` of the oldest and the newest supported Kubernetes, as a user has them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
VERSIONS = ("1.29", "1.37")
_PROGRAMS = ROOT / ".cache" / "kubernetes"


def program(name: str, version: str) -> str:
    """Return the path of ``kubectl`` or ``helm``; skip the test where there is none."""
    own = _PROGRAMS / version / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: `make kubectl` gets it (Linux, x86-64), or put one on PATH")
    return found


def build(directory: Path, version: str = VERSIONS[-1]) -> str:
    """Return what ``kubectl kustomize DIRECTORY`` prints."""
    done = subprocess.run(
        [program("kubectl", version), "kustomize", str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of a YAML text."""
    return [each for each in yaml.safe_load_all(text) if each]


class Checkout:
    """A directory of a user: manifests of theirs beside a checkout of ``deploy/kustomize``."""

    def __init__(self, place: Path) -> None:
        """Copy the components to *place*."""
        self.place = place
        shutil.copytree(KUSTOMIZE, place / "penstock")
        (place / "mine").mkdir()

    def build(self, manifests: str, *components: str, version: str = VERSIONS[-1], more: str = "") -> str:
        """Return the manifests with these components (``component/leader``); *more* is added to the kustomization."""
        mine = self.place / "mine"
        (mine / "all.yaml").write_text(manifests)
        listed = ", ".join(f"../penstock/{name}" for name in components)
        (mine / "kustomization.yaml").write_text(f"resources: [all.yaml]\ncomponents: [{listed}]\n{more}")
        return build(mine, version)

    def helm(self, version: str, *arguments: str) -> str:
        """Run helm with directories of its own, and kubectl on its path."""
        home = self.place / "helm"
        environment = {
            "PATH": f"{Path(program('kubectl', version)).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            **{f"HELM_{name}_HOME": str(home / name) for name in ("DATA", "CONFIG", "CACHE")},
        }
        done = subprocess.run(
            [program("helm", version), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
