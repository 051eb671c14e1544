"""What the overlays make is accepted by a real API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.kubernetes.api_server import NAMESPACE, ApiServer
from tests.support.kubernetes.builds import KUSTOMIZE, build, documents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

OVERLAYS = sorted(
    path.parent
    for path in KUSTOMIZE.rglob("kustomization.yaml")
    if yaml.safe_load(path.read_text()).get("kind") != "Component"
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """Run an API server."""
    running = ApiServer(tmp_path)
    running.start_etcd()
    running.start_server()
    await running.ready()
    yield running
    running.stop()


def _pods(node: Any) -> Iterator[dict[str, Any]]:
    """Yield a pod for each template in *node*, of whatever kind of workload."""
    if isinstance(node, dict):
        spec = node.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": dict(node.get("metadata", {})),
                "spec": spec,
            }
        for each in node.values():
            yield from _pods(each)
    elif isinstance(node, list):
        for each in node:
            yield from _pods(each)


async def test_a_server_takes_all_pods(cluster: ApiServer, tmp_path: Path) -> None:
    """By server-side apply without storing; the server is older than native sidecars, so without their one field."""
    objects = []
    for overlay in OVERLAYS:
        found = documents(build(overlay))
        pods = list(_pods(found))
        assert pods, overlay
        objects += [each for each in found if each["apiVersion"] == "apps/v1"] + pods
        for pod in pods:
            for container in pod["spec"].get("initContainers", []):
                container.pop("restartPolicy", None)
    for number, each in enumerate(objects):
        each["metadata"] |= {"name": f"object-{number}", "namespace": NAMESPACE}
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects, sort_keys=False))
    said = await cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=false", "-f", str(file)
    )
    assert said.count("serverside-applied") == len(objects) >= 2 * len(OVERLAYS) - 1
