"""The follower beside a real API server and etcd: changes, rights, tokens, and both killed."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from penstock.agent.policy.kubernetes.objects import read_object

from tests.support.kubernetes.api_server import BINDINGS, NAMESPACE, POLICIES, ApiServer
from tests.support.kubernetes.cluster import running_cluster
from tests.support.kubernetes.gate import Gate
from tests.support.kubernetes.sink import following
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    """Run one."""
    async with running_cluster(tmp_path_factory.mktemp("cluster")) as server:
        yield server


async def test_objects_come_change_and_go(cluster: ApiServer) -> None:
    """List, watch, edit, delete; only Penstock's annotations are the manifest's; a schema error is the server's."""
    await cluster.must("POST", POLICIES, document("a", reason="INC-1"))
    async with following(await cluster.access()) as sink:
        await sink.until(lambda: sink.actions == {"a": "recompute"})
        assert sink.sets[-1].objects["a"].manifest == document("a", reason="INC-1")
        await cluster.must("POST", POLICIES, document("b", kvLoadFailure=action("fail")))
        await sink.until(lambda: sink.actions == {"a": "recompute", "b": "fail"})
        patch = {"metadata": {"annotations": {"other/x": "y"}}, "spec": {"kvLoadFailure": action("auto")}}
        status, _ = await cluster.call("PATCH", f"{POLICIES}/a", patch, "application/merge-patch+json")
        assert status == 200
        await sink.until(lambda: sink.actions == {"a": "auto", "b": "fail"})
        assert sink.sets[-1].objects["a"].manifest["metadata"] == document("a", reason="INC-1")["metadata"]
        await cluster.must("DELETE", f"{POLICIES}/a")
        await sink.until(lambda: sink.actions == {"b": "fail"})
        await cluster.must("DELETE", f"{POLICIES}/b")
        await sink.until(lambda: sink.actions == {} and bool(sink.sets))
        status, answer = await cluster.call("POST", POLICIES, document("c", priority=1001))
        assert (status, "spec.priority" in answer["message"]) == (422, True)
        assert sink.errors == []


async def test_rights_and_tokens(cluster: ApiServer) -> None:
    """Without the role it says what to bind, with a bad token what to mount; both heal without a restart."""
    await cluster.must("POST", POLICIES, document("a"))
    access = await cluster.access()
    await cluster.must("DELETE", f"{BINDINGS}/agent")
    async with following(access) as sink:
        await sink.until(lambda: "bind the ClusterRole penstock-agent" in (sink.error or ""))
        assert sink.sets == []
        await cluster.bind()
        await sink.until(lambda: sink.actions == {"a": "recompute"})
    (cluster.place / "token").write_text("expired")
    async with following(access) as sink:
        await sink.until(lambda: "does not accept the token" in (sink.error or ""))
        await cluster.write_token()
        await sink.until(lambda: sink.actions == {"a": "recompute"})
    # An agent reads only.
    assert access.namespace == NAMESPACE


async def test_a_killed_server_and_a_killed_etcd(cluster: ApiServer) -> None:
    """Nothing is taken away meanwhile, and what changed in between comes afterwards."""
    await cluster.must("POST", POLICIES, document("a"))
    async with following(await cluster.access()) as sink:
        await sink.until(lambda: sink.actions == {"a": "recompute"})
        assert cluster.server is not None
        cluster.server.kill()
        cluster.server.wait()
        await sink.until(lambda: sink.error is not None)
        cluster.start_server()
        await cluster.ready()
        await cluster.must("POST", POLICIES, document("b"))
        await sink.until(lambda: sink.error is None and sink.actions.keys() == {"a", "b"})
        assert cluster.etcd is not None
        cluster.etcd.kill()
        cluster.etcd.wait()
        cluster.start_etcd()
        await cluster.ready()
        await cluster.must("POST", POLICIES, document("c"))
        await sink.until(lambda: sink.actions.keys() == {"a", "b", "c"})
        assert all("a" in found.objects for found in sink.sets)


async def test_a_definition_taken_away_takes_no_policy_along(cluster: ApiServer) -> None:
    """The server deletes the objects one by one, and then has none at all: neither is a withdrawal."""
    for name in ("a", "b", "c"):
        await cluster.must("POST", POLICIES, document(name))
    async with following(await cluster.access()) as sink:
        await sink.until(lambda: sink.actions.keys() == {"a", "b", "c"})
        there = len(sink.sets)
        name = "transferpolicies.penstock.dev"
        await cluster.must("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        await sink.until(lambda: "apply deploy/crd" in (sink.error or ""))
        assert all(found.objects.keys() == {"a", "b", "c"} for found in sink.sets[there - 1 :])


@asynccontextmanager
async def _changing(cluster: ApiServer) -> AsyncIterator[None]:
    """Create, edit and delete policies until the end of the block; a server that is away is asked again."""
    end = asyncio.Event()

    async def change() -> None:
        for number in itertools.count():
            name = f"p{number % 7}"
            with suppress(aiohttp.ClientError, TimeoutError):
                await cluster.call("POST", POLICIES, document(name))
                patch = {"spec": {"kvLoadFailure": {"action": "fail", "maxRecomputeTokens": number}}}
                await cluster.call("PATCH", f"{POLICIES}/{name}", patch, "application/merge-patch+json")
                if number % 3 == 0:
                    await cluster.call("DELETE", f"{POLICIES}/{name}")
            if end.is_set():
                return
            await asyncio.sleep(0.01)

    task = asyncio.ensure_future(change())
    try:
        yield
    finally:
        end.set()
        await task


async def _manifests(cluster: ApiServer) -> dict[str, Any]:
    answer = await cluster.must("GET", POLICIES)
    return {name: found.manifest for name, found in map(read_object, answer["items"])}


@pytest.mark.long
async def test_both_killed_under_changes(cluster: ApiServer) -> None:
    """In the end the agent has what the cluster has; what nobody touched was there all the time."""
    await cluster.must("POST", POLICIES, document("a"))
    async with following(await cluster.access()) as sink:
        await sink.until(lambda: "a" in sink.actions)
        async with _changing(cluster):
            for _ in range(2):
                before = len(sink.sets)
                await sink.until(lambda before=before: len(sink.sets) > before + 5)  # type: ignore[misc]
                assert cluster.server is not None
                cluster.server.kill()
                cluster.server.wait()
                await sink.until(lambda: sink.error is not None)
                cluster.start_server()
                await cluster.ready()
                before = len(sink.sets)
                await sink.until(lambda before=before: len(sink.sets) > before + 5)  # type: ignore[misc]
                assert cluster.etcd is not None
                cluster.etcd.kill()
                cluster.etcd.wait()
                cluster.start_etcd()
                await cluster.ready()
        await cluster.must("POST", POLICIES, document("last"))
        there = await _manifests(cluster)
        await sink.until(
            lambda: {name: each.manifest for name, each in sink.sets[-1].objects.items()} == there
        )
        assert all("a" in found.objects for found in sink.sets)


async def test_a_compacted_revision(cluster: ApiServer) -> None:
    """After changes that a compaction and a new API server have forgotten, all is listed, and deletions are seen."""
    for name in ("a", "b"):
        await cluster.must("POST", POLICIES, document(name))
    access = await cluster.access()
    async with (
        Gate(cluster.port) as gate,
        following(replace(access, url=f"https://127.0.0.1:{gate.port}")) as sink,
    ):
        await sink.until(lambda: sink.actions.keys() == {"a", "b"})
        old = sink.sets[-1].revision
        await gate.shut()
        await sink.until(lambda: sink.error is not None)
        await cluster.must("DELETE", f"{POLICIES}/b")
        await cluster.must("POST", POLICIES, document("c"))
        await cluster.compact()
        assert cluster.server is not None
        cluster.server.kill()
        cluster.server.wait()
        cluster.start_server()
        await cluster.ready()
        query = f"watch=1&resourceVersion={old}&timeoutSeconds=2"
        assert "too old resource version" in str(await cluster.call("GET", f"{POLICIES}?{query}"))
        heard = len(sink.errors)
        await gate.open()
        await sink.until(lambda: sink.error is None and sink.actions.keys() == {"a", "c"})
        assert not [error for error in sink.errors[heard:] if "too old" in error or "revision" in error]


async def test_what_kubectl_shows(cluster: ApiServer) -> None:
    """The short name, the columns, a status that only its subresource takes, and a condition to wait for."""
    await cluster.must("POST", POLICIES, document("a"))
    condition = {
        "type": "Programmed", "status": "True", "observedGeneration": 1, "reason": "InForce", "message": "in all engines",
        "lastTransitionTime": "2026-11-20T12:00:00Z",
    }  # fmt: skip
    status = {"status": {"matched": 3, "inForce": 2, "refused": 1, "conditions": [condition]}}
    await cluster.call("PATCH", f"{POLICIES}/a", status, "application/merge-patch+json")
    assert "status" not in await cluster.must("GET", f"{POLICIES}/a")
    answer = await cluster.call("PATCH", f"{POLICIES}/a/status", status, "application/merge-patch+json")
    assert answer[0] == 200, answer[1]["message"]
    found = (await cluster.kubectl("get", "tpol")).splitlines()
    assert found[0].split() == ["NAME", "MATCHED", "IN-FORCE", "REFUSED", "AGE"]
    assert found[1].split()[:4] == ["a", "3", "2", "1"]
    assert "condition met" in await cluster.kubectl(
        "wait", "tpol/a", "--for=condition=Programmed", "--timeout=20s"
    )
