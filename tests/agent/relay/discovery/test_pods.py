"""Agents are found by the labels of their pods, at a real API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.relay.discovery import AgentPlace, PodSelector, pod_reader

from tests.support.kubernetes.api_server import NAMESPACE, ApiServer
from tests.support.kubernetes.cluster import bind, running_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    """Run one."""
    async with running_cluster(tmp_path_factory.mktemp("cluster")) as server:
        yield server


async def _pod(cluster: ApiServer, name: str, labels: dict[str, str], **status: Any) -> None:
    spec = {"containers": [{"name": "vllm", "image": "vllm"}]}
    pod = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    await cluster.must("POST", PODS, pod)
    answer, _ = await cluster.call(
        "PATCH", f"{PODS}/{name}/status", {"status": status}, "application/merge-patch+json"
    )
    assert answer == 200


async def test_pods_with_these_labels(cluster: ApiServer) -> None:
    """Running ones with an address, by name; without the role it says what to bind."""
    decode = {"app": "vllm", "role": "decode"}
    await _pod(cluster, "decode-1", decode, phase="Running", podIP="10.0.0.2")
    await _pod(cluster, "decode-0", decode, phase="Running", podIP="fd00::1")
    await _pod(cluster, "decode-2", decode, phase="Pending")
    await _pod(cluster, "decode-3", decode, phase="Succeeded", podIP="10.0.0.4")
    await _pod(cluster, "other", {"app": "vllm"}, phase="Running", podIP="10.0.0.5")
    access = await cluster.access()
    selector = PodSelector(NAMESPACE, "app=vllm,role in (decode,prefill)", 9465)
    read = pod_reader(selector, access.url, access.token_file, access.ca_file)
    with pytest.raises(OSError, match="bind the ClusterRole penstock-relay-pods "):
        await read()
    await bind(cluster, "penstock-relay-pods", "relay")
    found = await read()
    assert found == [
        AgentPlace("decode-0", "[fd00::1]:9465"),
        AgentPlace("decode-1", "10.0.0.2:9465"),
    ]
