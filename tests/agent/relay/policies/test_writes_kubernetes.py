"""Policies are written through a real relay to a real Kubernetes API server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from penstock.agent.errors import ConflictError, ImpossibleError, ManifestError, NotFoundError
from penstock.agent.policy.kubernetes import ApiClient
from penstock.agent.policy.manifest import check_manifest
from penstock.agent.relay.policies.kubernetes_policies import KubernetesPolicies

from tests.support.agent.agent import running_agent, short_directory
from tests.support.agent.relay import running_relay
from tests.support.kubernetes.api_server import NAMESPACE, POLICIES, ApiServer
from tests.support.kubernetes.cluster import bind, running_cluster
from tests.support.policy.policies import action, document
from tests.support.samples.stand_in_engine import StandInEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    """Run one."""
    async with running_cluster(tmp_path_factory.mktemp("cluster")) as server:
        yield server


async def test_an_object_is_replaced_as_a_whole(cluster: ApiServer) -> None:
    """A field that the policy no longer has goes, whoever wrote it; what others keep in the metadata stays."""
    policies = KubernetesPolicies("kubernetes", await cluster.access())
    written = document("a", deferral={"maxTransferWait": "5s"})
    written["metadata"] |= {"labels": {"team": "x"}, "annotations": {"other/x": "y"}}
    await cluster.must("POST", POLICIES, written)
    first = (await policies.read()).policies["a"]
    changed = check_manifest(document("a", kvLoadFailure=action("fail")))
    with pytest.raises(
        ImpossibleError, match=r"may not update TransferPolicy .* bind the ClusterRole penstock-policy-editor"
    ):
        await policies.put(changed, first.revision)
    await bind(cluster, "penstock-policy-editor", "editor")
    second = await policies.put(changed, first.revision)
    assert second.revision > first.revision
    stored = await cluster.must("GET", f"{POLICIES}/a")
    assert stored["spec"] == changed.document()["spec"]
    assert (stored["metadata"]["labels"], stored["metadata"]["annotations"]) == (
        {"team": "x"},
        {"other/x": "y"},
    )
    with pytest.raises(ConflictError, match="at generation"):
        await policies.put(changed, first.revision)
    with pytest.raises(ConflictError, match="absent"):
        await policies.put(check_manifest(document("b")), 7)
    created = await policies.put(check_manifest(document("b", reason="INC-1")), 0)
    assert (await policies.read()).policies["b"].revision == created.revision
    with pytest.raises(ConflictError):
        await policies.delete("b", first.revision)
    await policies.delete("b", created.revision)
    with pytest.raises(NotFoundError, match="'b' is not in namespace"):
        await policies.delete("b")
    assert set((await policies.read()).policies) == {"a"}
    # What only the API server finds wrong is said as the model's own findings are.
    async with ApiClient(await cluster.access()) as client:
        with pytest.raises(ManifestError, match=r"the API server refuses the object: .*priority"):
            await client.write_object(document("c", priority=1001))


async def test_a_write_reaches_the_engine(cluster: ApiServer) -> None:
    """`set-policy --wait` through the relay ends when the engine has it; so does one that changes nothing."""
    await bind(cluster, "penstock-policy-editor", "editor")
    access = await cluster.access()
    flags = (
        f"--policy-source=kubernetes:{NAMESPACE}",
        f"--kube-api={access.url}",
        f"--kube-token-file={access.token_file}",
        f"--kube-ca={access.ca_file}",
    )
    await asyncio.to_thread(_set_twice, flags, cluster)
    stored = await cluster.must("GET", f"{POLICIES}/one")
    assert stored["spec"]["kvLoadFailure"] == {"action": "recompute"}


def _set_twice(flags: tuple[str, ...], cluster: ApiServer) -> None:
    with short_directory() as directory, running_agent(flags) as agent:
        labels = {"PENSTOCK_ENDPOINT": agent.listen, "PENSTOCK_LABELS": "role=decode"}
        engine = StandInEngine(labels).start()
        try:
            engine.settle()
            with running_relay(directory, f"--agents=pod={agent.admin}", *flags) as relay:
                relay.wait_for(pod="up")
                for result in ("created", "unchanged"):
                    done = relay.agentctl(
                        "set-policy", "one", "--selector=role=decode", "--kv-load-failure=recompute", "--wait"
                    )
                    assert (done.exit_code, result in done.stdout) == (0, True), done.stdout + done.stderr
                    touched = asyncio.run(_touch(cluster))
                    assert touched == 200
        finally:
            engine.stop()


async def _touch(cluster: ApiServer) -> int:
    """Change the object's version without a change of the policy."""
    patch = {"metadata": {"annotations": {"other/x": "y"}}}
    status, _ = await cluster.call("PATCH", f"{POLICIES}/one", patch, "application/merge-patch+json")
    return status
