"""A running API server for a test."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.support.kubernetes.api_server import BINDINGS, NAMESPACE, ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def running_cluster(place: Path) -> AsyncIterator[ApiServer]:
    """Run a server with the definition and the roles; the account ``agent`` has the role of agents."""
    server = ApiServer(place)
    try:
        server.start_etcd()
        server.start_server()
        await server.ready()
        await server.install()
        yield server
    finally:
        server.stop()


async def bind(cluster: ApiServer, role: str, name: str) -> None:
    """Give the account ``agent`` a ClusterRole, by a binding of that *name*."""
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    account: dict[str, Any] = {"kind": "ServiceAccount", "name": "agent", "namespace": NAMESPACE}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [account]}
    await cluster.must("POST", BINDINGS, binding)
