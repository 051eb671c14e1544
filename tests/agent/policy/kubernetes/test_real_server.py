"""The follower beside a real API server and etcd: changes, rights, tokens, and both killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.kubernetes.api_server import BINDINGS, NAMESPACE, POLICIES, ApiServer
from tests.support.kubernetes.sink import following
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    """Start both, with the definition and the roles."""
    server = ApiServer(tmp_path_factory.mktemp("cluster"))
    try:
        server.start_etcd()
        server.start_server()
        await server.ready()
        await server.install()
        yield server
    finally:
        server.stop()


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


async def test_a_definition_taken_away_takes_no_policy_from_who_looks_again(cluster: ApiServer) -> None:
    """The second look finds no objects at all, which is no empty set."""
    await cluster.must("POST", POLICIES, document("a"))
    async with following(await cluster.access()) as sink:
        await sink.until(lambda: sink.actions == {"a": "recompute"})
        sink.again = 0.5
        name = "transferpolicies.penstock.dev"
        await cluster.must("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        await sink.until(lambda: "apply deploy/crd" in (sink.error or ""))
