"""A real Kubernetes API server with its etcd, on loopback; ``make kube-apiserver`` builds it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from penstock.agent.policy.kubernetes import ClusterAccess

from demo.common.kube_api_server import DEFINITION, ROLES, ServerFiles, missing_server, without_rules
from tests.support.kubernetes.builds import VERSIONS, program

_START_SECONDS = 120.0
NAMESPACE = "default"
POLICIES = f"/apis/penstock.dev/v1alpha1/namespaces/{NAMESPACE}/transferpolicies"
ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
BINDINGS = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"


class ApiServer:
    """An API server and its etcd; each may be killed and started again."""

    def __init__(self, place: Path) -> None:
        """Write the keys to *place*; skip the test where there is no API server."""
        if missing := missing_server():
            pytest.skip(missing)
        self.place = place
        self._files = ServerFiles(place)
        self.ca = self._files.ca
        self.etcd: subprocess.Popen[bytes] | None = None
        self.server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the API server."""
        return self._files.url

    @property
    def port(self) -> int:
        """The port of the API server."""
        return self._files.port

    def start_etcd(self) -> None:
        """Start etcd over its data."""
        self.etcd = self._run(*self._files.etcd_command())

    def start_server(self) -> None:
        """Start the API server, and wait until it is ready."""
        self.server = self._run(*self._files.server_command())

    def stop(self) -> None:
        """Kill both. Idempotent."""
        for process in (self.server, self.etcd):
            if process is not None:
                process.kill()
                process.wait()

    async def ready(self) -> None:
        """Wait until it answers; end the test with its last lines if it does not."""
        limit = time.monotonic() + _START_SECONDS
        while time.monotonic() < limit:
            try:
                status, _ = await self.call("GET", "/readyz")
                if status == 200:
                    return
            except (aiohttp.ClientError, TimeoutError):
                pass
            if self.server is not None and self.server.poll() is not None:
                break
            await asyncio.sleep(0.2)
        pytest.fail((self.place / "kube-apiserver.log").read_text()[-3000:])

    async def call(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        """Ask as an administrator; return the status and the answer."""
        import ssl

        context = ssl.create_default_context(cafile=str(self.ca))
        self._files.admin.configure_cert(context)
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
            session.request(
                method,
                f"{self.url}{path}",
                data=None if body is None else json.dumps(body),
                headers={"Content-Type": kind},
                ssl=context,
            ) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def must(self, method: str, path: str, body: Any = None) -> Any:
        """Ask as an administrator; a refusal ends the test."""
        status, answer = await self.call(method, path, body)
        assert status < 300, answer
        return answer

    async def install(self) -> None:
        """Create the definition, the roles, and the service account ``agent`` with the role of agents."""
        definition = without_rules(yaml.safe_load(DEFINITION.read_text()))
        await self.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        for role in yaml.safe_load_all(ROLES.read_text()):
            await self.must("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
        # The server makes its namespace by itself, now or in a moment.
        status, answer = await self.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        assert status in (201, 409), answer
        await self.must("POST", ACCOUNTS, {"metadata": {"name": "agent"}})
        await self.bind()
        limit = time.monotonic() + 30
        while (await self.call("GET", POLICIES))[0] != 200:
            assert time.monotonic() < limit
            await asyncio.sleep(0.1)

    async def bind(self) -> None:
        """Give the service account the role of agents."""
        binding = {
            "metadata": {"name": "agent"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "penstock-agent",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": NAMESPACE}],
        }
        await self.must("POST", BINDINGS, binding)

    async def access(self) -> ClusterAccess:
        """Return the access of the service account, with a new token."""
        await self.write_token()
        return ClusterAccess(self.url, NAMESPACE, self.place / "token", self.ca)

    async def compact(self) -> None:
        """Let etcd forget all revisions before the current one."""
        url = f"{self._files.etcd_url}/v3/kv"
        async with aiohttp.ClientSession() as session:
            # The key is "\0": nothing is there.
            async with session.post(f"{url}/range", json={"key": "AA=="}) as response:
                revision = (await response.json())["header"]["revision"]
            body = {"revision": revision, "physical": True}
            async with session.post(f"{url}/compaction", json=body) as response:
                assert response.status == 200, await response.text()

    async def kubectl(self, *arguments: str) -> str:
        """Run kubectl as an administrator; a refusal ends the test."""
        access = (
            f"--kubeconfig={self._files.write_kubeconfig(NAMESPACE)}",
            f"--cache-dir={self.place}/kubectl",
        )
        process = await asyncio.create_subprocess_exec(
            program("kubectl", VERSIONS[0]),
            *access,
            *arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, said
        return said

    async def write_token(self) -> None:
        """Replace the token as the kubelet does."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 600},
        }
        answer = await self.must("POST", f"{ACCOUNTS}/agent/token", request)
        written = self.place / "token.new"
        written.write_text(answer["status"]["token"])
        written.replace(self.place / "token")

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        log = (self.place / f"{Path(command[0]).name}.log").open("ab")
        with log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.place)
