"""The payload's image, as `make image` builds it, stages the engine part as a pod's init container: `make test-image`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from penstock.proto.version import __version__

from tests.support.agent.agent import short_directory
from tests.support.deploy.container import USER, image_facts, run_once

IMAGE = os.environ.get("PENSTOCK_PAYLOAD_IMAGE", "")
pytestmark = pytest.mark.skipif(not IMAGE, reason="no image; make test-image builds one and runs this")
_ROOT = Path(__file__).parents[2]
_MOST_BYTES = 250_000_000


def _container() -> dict[str, Any]:
    """Return the component's init container."""
    source = yaml.safe_load((_ROOT / "deploy/kustomize/component/source/penstock.yaml").read_text())
    (container,) = (
        each for each in source["template"]["spec"]["initContainers"] if each["name"] == "penstock-payload"
    )
    return dict(container)


_CONTAINER = _container()
_COMMAND: list[str] = _CONTAINER["command"]
_MEMORY = _CONTAINER["resources"]["limits"]["memory"].removesuffix("i").lower()


def test_what_it_says_of_itself() -> None:
    """Labels, user, command; no agent in it."""
    facts = image_facts(IMAGE)
    labels = {name.rpartition(".")[2]: value for name, value in facts["Labels"].items()}
    assert (labels["version"], labels["title"]) == (__version__, "penstock-payload")
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", labels["revision"])
    assert facts["User"] == f"{USER}:{USER}"
    assert facts["Config"]["Entrypoint"] + facts["Config"]["Cmd"] == _COMMAND
    assert facts["Size"] < _MOST_BYTES


def test_it_stages_what_an_engine_without_grpc_can_use(image_without_grpc: Path) -> None:
    """By the manifest's command and memory limit into an empty volume; the engine's Python finds it whole, gRPC included."""
    with short_directory() as directory:
        directory.chmod(0o755)
        volume = directory / "engine"
        volume.mkdir()
        os.chown(volume, USER, USER)
        staged = run_once(IMAGE, *_COMMAND, memory=_MEMORY, volume=volume)
        assert staged.returncode == 0
        assert f"the engine part {__version__} is in {_COMMAND[-1]}" in staged.stderr
        asked = subprocess.run(
            [image_without_grpc, "-m", "penstock_payload"],
            env={**os.environ, "PYTHONPATH": str(volume), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "is whole; gRPC and protobuf: " in asked.stdout, asked.stderr
        assert asked.stdout.rstrip().endswith("/penstock-fallback")
        again = run_once(IMAGE, *_COMMAND, memory=_MEMORY, volume=volume)
        assert "already" in again.stderr


def test_without_a_volume_the_pod_starts_all_the_same() -> None:
    """The root is read-only: it says so, and exits with 0."""
    done = run_once(IMAGE, *_COMMAND, memory=_MEMORY)
    assert done.returncode == 0
    assert f"no engine part is staged, vLLM starts without Penstock: {_COMMAND[-1]}" in done.stderr
