"""What each role of ``deploy/`` lets its account do, at a real API server: nobody without the role changes anything."""

from __future__ import annotations

import json
import re
import ssl
from collections import defaultdict
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import yaml

from demo.common.kube_api_server import ROLES
from tests.support.kubernetes.api_server import NAMESPACE, ApiServer
from tests.support.kubernetes.cluster import running_cluster
from tests.support.policy.policies import document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_DEPLOY = Path(__file__).parents[4] / "deploy"
NOBODY = "nobody"
OTHER = "other"
_READ = frozenset({"get", "list", "watch"})
_WRITE = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# What each account may do in its namespace; all else is denied.
MAY: dict[str, dict[str, frozenset[str]]] = {
    NOBODY: {},
    "penstock-agent": {"transferpolicies": _READ},
    "penstock-policy-viewer": {"transferpolicies": _READ, "transferpolicies/status": frozenset({"get"})},
    "penstock-policy-editor": {"transferpolicies": _READ | _WRITE - {"deletecollection"}},
    "penstock-relay": {
        "transferpolicies": _READ,
        "transferpolicies/status": frozenset({"get", "patch"}),
        # Its own it may get and update, too.
        "leases": frozenset({"create"}),
    },
    "penstock-relay-pods": {"pods": frozenset({"list"})},
}


class _Kind(NamedTuple):
    """Objects of one resource."""

    api: str
    sample: dict[str, Any]


_CONTAINER = {"name": "c", "image": "none"}
_ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "penstock-policy-editor"}
KINDS = {
    "transferpolicies": _Kind("apis/penstock.dev/v1alpha1", document("held")),
    "leases": _Kind("apis/coordination.k8s.io/v1", {"spec": {"holderIdentity": "somebody"}}),
    "pods": _Kind("api/v1", {"spec": {"containers": [_CONTAINER]}}),
    "secrets": _Kind("api/v1", {"stringData": {"key": "value"}}),
    "rolebindings": _Kind("apis/rbac.authorization.k8s.io/v1", {"roleRef": _ROLE}),
}
RESOURCES = (*KINDS, "transferpolicies/status")


class _Request(NamedTuple):
    method: str
    path: str
    body: dict[str, Any] | None = None
    query: str = ""


def _requests(resource: str, namespace: str, held: dict[str, Any]) -> dict[str, _Request]:
    """Return what an account sends, by the verb that the API server makes of it."""
    kind, _, part = resource.partition("/")
    every = f"/{KINDS[kind].api}/namespaces/{namespace}/{kind}"
    one = "/".join(filter(None, (every, "held", part)))
    patch = {"status": {"matched": 7}} if part else {"metadata": {"labels": {"changed": "yes"}}}
    changed = {**held, **(patch if part else {"metadata": {**held["metadata"], **patch["metadata"]}})}
    found = {
        "get": _Request("GET", one),
        "update": _Request("PUT", one, changed),
        "patch": _Request("PATCH", one, patch),
        "delete": _Request("DELETE", one),
    }
    if part:
        # A collection has no part.
        return {**found, "create": _Request("POST", one, changed)}
    return {
        **found,
        "list": _Request("GET", every),
        "watch": _Request("GET", every, query="watch=1&timeoutSeconds=1"),
        "create": _Request("POST", every, _sample(kind, "new")),
        "deletecollection": _Request("DELETE", every),
    }


def _sample(kind: str, name: str) -> dict[str, Any]:
    return {**KINDS[kind].sample, "metadata": {"name": name}}


class Accounts:
    """A cluster with one object of each kind in each of two namespaces, and an account of each role in the first."""

    def __init__(self, cluster: ApiServer, session: aiohttp.ClientSession) -> None:
        """Make nothing yet."""
        self._cluster = cluster
        self._session = session
        self._tokens: dict[str, str] = {}

    async def create(self) -> None:
        """Create all."""
        must = self._cluster.must
        await must("POST", "/api/v1/namespaces", {"metadata": {"name": OTHER}})
        for namespace in (NAMESPACE, OTHER):
            for name, kind in KINDS.items():
                await must("POST", f"/{kind.api}/namespaces/{namespace}/{name}", _sample(name, "held"))
        core, rbac = f"/api/v1/namespaces/{NAMESPACE}", "/apis/rbac.authorization.k8s.io/v1"
        for name in MAY:
            await must("POST", f"{core}/serviceaccounts", {"metadata": {"name": name}})
            answer = await must(
                "POST",
                f"{core}/serviceaccounts/{name}/token",
                {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
            )
            self._tokens[name] = answer["status"]["token"]
            binding = {
                "metadata": {"name": name},
                "roleRef": {**_ROLE, "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
            }
            if name != NOBODY:
                await must("POST", f"{rbac}/namespaces/{NAMESPACE}/rolebindings", binding)

    async def held(self, namespace: str) -> dict[str, dict[str, Any]]:
        """Return the objects by kind."""
        return {
            name: await self._cluster.must("GET", f"/{kind.api}/namespaces/{namespace}/{name}/held")
            for name, kind in KINDS.items()
        }

    async def status(self, account: str, request: _Request, *, dry: bool) -> int:
        """Send as *account*; return the status of the answer."""
        kind = "application/merge-patch+json" if request.method == "PATCH" else "application/json"
        query = "&".join(
            filter(None, (request.query, "dryRun=All" if dry and request.method != "GET" else ""))
        )
        async with self._session.request(
            request.method,
            f"{self._cluster.url}{request.path}?{query}",
            data=None if request.body is None else json.dumps(request.body),
            headers={"Authorization": f"Bearer {self._tokens[account]}", "Content-Type": kind},
        ) as response:
            await response.read()
            return response.status


@asynccontextmanager
async def _accounts(place: Path) -> AsyncIterator[Accounts]:
    async with running_cluster(place) as cluster:
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(cluster.ca)))
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            accounts = Accounts(cluster, session)
            await accounts.create()
            yield accounts


def test_the_table_has_all_roles() -> None:
    """No other file of deploy/ makes a role, and only the relay's bind some of these, to the relay's account."""
    roles = {role["metadata"]["name"] for role in yaml.safe_load_all(ROLES.read_text())}
    assert roles == MAY.keys() - {NOBODY}
    giving = re.compile(r"^\s*-?\s*kind: (Cluster)?Role(Binding)?\s*$", re.MULTILINE)
    files = {path for path in _DEPLOY.rglob("*.y*ml") if giving.search(path.read_text())} - {ROLES}
    rights = [
        (each["roleRef"]["kind"], each["roleRef"]["name"], [subject["name"] for subject in each["subjects"]])
        for path in files
        for each in yaml.safe_load_all(path.read_text())
        if "Role" in each["kind"]
    ]
    relay = ("penstock-policy-editor", "penstock-relay", "penstock-relay-pods")
    assert sorted(rights) == [("ClusterRole", role, ["penstock-relay"]) for role in relay]


async def test_nobody_without_the_role_changes_anything(tmp_path: Path) -> None:
    """Each account, verb, resource and namespace; a role counts in the namespace of its binding only.

    What is to be refused is sent in earnest, and the objects are as before.
    """
    async with _accounts(tmp_path) as accounts:
        found: dict[tuple[str, str], dict[str, set[str]]] = {}
        odd = []
        before = {namespace: await accounts.held(namespace) for namespace in (NAMESPACE, OTHER)}
        expected = {(account, NAMESPACE): may for account, may in MAY.items()}
        expected |= {(account, OTHER): {} for account in MAY}
        for (account, namespace), may in expected.items():
            allowed = found[account, namespace] = defaultdict(set)
            for resource in RESOURCES:
                held = before[namespace][resource.partition("/")[0]]
                for verb, request in _requests(resource, namespace, held).items():
                    status = await accounts.status(account, request, dry=verb in may.get(resource, ()))
                    if status != 403:
                        allowed[resource].add(verb)
                        if not 200 <= status < 300:
                            odd.append((account, namespace, resource, verb, status))
        assert found == expected
        assert odd == []
        assert {namespace: await accounts.held(namespace) for namespace in before} == before
