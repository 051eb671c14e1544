"""The agent's image, as `make image` builds it, runs as a pod runs it: only `make test-image` has one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from penstock.proto.version import DISTRIBUTION, __version__

from tests.support.agent.agent import short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.deploy.container import USER, Sidecar, image_facts
from tests.support.samples.stand_in_engine import StandInEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = os.environ.get("PENSTOCK_IMAGE", "")
pytestmark = pytest.mark.skipif(not IMAGE, reason="no image; make test-image builds one and runs this")
_ROOT = Path(__file__).parents[2]
_MOST_BYTES = 260_000_000
_SBOM = "/opt/penstock/share/sbom.cdx.json"
_INSTALLED = """
import importlib.metadata as m, json
print(json.dumps({d.name.lower().replace("_", "-"): d.version for d in m.distributions()}))
"""


@pytest.fixture(scope="module")
def volumes() -> Iterator[Path]:
    """Make the pod's volumes."""
    with short_directory() as directory:
        directory.chmod(0o755)
        yield directory


@pytest.fixture(scope="module")
def sidecar(volumes: Path) -> Iterator[Sidecar]:
    """Start a container that all tests share."""
    sidecar = Sidecar(IMAGE, volumes)
    try:
        yield sidecar.start()
    finally:
        sidecar.remove()


@pytest.fixture(scope="module")
def sbom(sidecar: Sidecar) -> dict[str, Any]:
    """Read the list of contents that the image has of itself."""
    document: dict[str, Any] = json.loads(sidecar.execute("cat", _SBOM).stdout)
    return document


def test_what_it_says_of_itself() -> None:
    """Labels, user, signal, and a size that nobody has to wait for."""
    facts = image_facts(IMAGE)
    labels = {name.rpartition(".")[2]: value for name, value in facts["Labels"].items()}
    assert labels["version"] == __version__
    assert labels["licenses"] == "Apache-2.0"
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", labels["revision"])
    assert facts["User"] == f"{USER}:{USER}"
    assert facts["Config"]["StopSignal"] in {"SIGTERM", "15"}
    assert facts["Config"]["Entrypoint"] == ["penstock-agent"]
    assert facts["Size"] < _MOST_BYTES


def test_it_needs_no_right(sidecar: Sidecar) -> None:
    """Its user is not root, has no capability, and writes nowhere but to the volumes."""
    status = sidecar.execute("cat", "/proc/1/status").stdout
    assert re.search(rf"^Uid:\s+{USER}\s+{USER}", status, re.MULTILINE)
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    for place in ("/tmp/x", "/opt/penstock/x", "/etc/x"):
        assert sidecar.execute("touch", place).returncode != 0
    assert sidecar.execute("test", "-w", "/var/lib/penstock").returncode == 0


def test_it_is_healthy(sidecar: Sidecar) -> None:
    """Alive and ready, not degraded."""
    assert sidecar.get("/healthz")[0] == 200
    code, body = sidecar.get("/readyz")
    assert code == 200
    assert "degraded" not in body


def test_it_lists_its_contents(sidecar: Sidecar, sbom: dict[str, Any]) -> None:
    """Each package of Python that is installed, Debian's, and no others."""
    ran = sidecar.execute("/opt/penstock/bin/python", "-c", _INSTALLED)
    installed = json.loads(ran.stdout)
    described = sbom["metadata"]["component"]
    assert (described["name"], described["version"]) == (DISTRIBUTION, __version__)
    assert installed.pop(DISTRIBUTION) == __version__
    listed = {
        part["name"].lower().replace("_", "-"): part["version"]
        for part in sbom["components"]
        if part["purl"].startswith("pkg:pypi/")
    }
    assert listed == installed
    lines = (_ROOT / "deploy" / "image" / "constraints.txt").read_text().splitlines()
    assert dict(line.split("==") for line in lines if "==" in line) == installed
    assert {"libc6", "python3.11"} <= {part["name"] for part in sbom["components"]} or "BASE" in os.environ


def test_a_user_finds_no_problem(sidecar: Sidecar) -> None:
    """An engine with the real runtime connects through the mounted socket; doctor and metrics say so."""
    engine = StandInEngine({"PENSTOCK_ENDPOINT": sidecar.endpoint, "PENSTOCK_LABELS": "role=decode"})
    engine.start()
    try:
        engine.settle()
        ran = sidecar.execute("agentctl", "doctor")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert f"penstock-agent {__version__} answers" in ran.stdout
        assert "1 engine connected" in ran.stdout
        assert sidecar.metric("penstock_engine_connected") == 1
    finally:
        engine.stop()


def test_a_bundle_comes_out_of_a_read_only_container(sidecar: Sidecar) -> None:
    """By a place for temporary files it is a ZIP archive on standard output, and none of them stays; else it says what is missing."""
    place = "/var/lib/penstock"
    refused = sidecar.execute("agentctl", "bundle", "-f", "-")
    assert "set TMPDIR to a directory" in refused.stderr
    taken = f"TMPDIR={place} agentctl bundle -f - >{place}/out && head -c 2 {place}/out"
    ran = sidecar.execute("sh", "-c", taken)
    left = sidecar.execute("ls", "-A", place).stdout.split()
    assert (ran.returncode, ran.stdout) == (0, "PK"), ran.stderr
    assert not [name for name in left if name.startswith("penstock-bundle-")]


def test_sigterm_keeps_what_was_acknowledged(volumes: Path, sidecar: Sidecar) -> None:
    """The container ends with 0, and the next one on its volumes has every event."""
    with FakeEngine(sidecar.endpoint, engine="7") as engine:
        for number in range(20):
            engine.publish(transfer_failure(f"request-{number}"))
        assert sidecar.stop() == 0, sidecar.log()
    after = Sidecar(IMAGE, volumes)
    try:
        after.start()
        wait_until(lambda: after.metric("penstock_transfer_failures_total") == 20, "all events are counted")
    finally:
        after.remove()
