"""Somebody without the role, who tries again and again to change policies at each place."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc
import nats
from penstock.proto.v1 import admin_pb2 as admin

from tests.faults.fleet.fleet import ask
from tests.faults.fleet.writers import BUCKET
from tests.support.kubernetes.api_server import POLICIES
from tests.support.policy.policies import document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.agent.agent import AgentProcess
    from tests.support.kubernetes.api_server import ApiServer

MARK = "intruder"
REFUSING = ("bucket", "owned policies")
"""Places of every fleet at which an attempt is refused."""
# Names of policies that others write, and one that nobody has.
_NAMES = ("p0", "p1", "nats-base", "objects-base", MARK)


class Intruder:
    """The agents' user of NATS, the agents' service account, and a colleague who may call an agent but owns no policy of a source.

    Attributes:
        refused: attempts by place; what is not answered, for its server is away, does not count.
        taken: attempts that were not refused.

    """

    def __init__(
        self, servers: Sequence[str], cluster: ApiServer | None, agents: Sequence[AgentProcess]
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.taken: list[str] = []
        self._servers = list(servers)
        self._cluster = cluster
        self._agents = agents

    async def attempt(self) -> None:
        """Try everything once."""
        await self._bucket()
        await self._objects()
        await self._owned()

    async def _bucket(self) -> None:
        violations: list[str] = []

        async def note(error: Exception) -> None:
            violations.append(str(error).lower())

        subjects = [f"$KV.{BUCKET}.{name}" for name in _NAMES]
        subjects += [f"$JS.API.STREAM.{verb}.KV_{BUCKET}" for verb in ("PURGE", "DELETE", "UPDATE")]
        try:
            client = await nats.connect(
                self._servers,
                user="agent",
                password="a",
                error_cb=note,
                allow_reconnect=False,
                connect_timeout=2,
            )
        except (OSError, nats.errors.Error, TimeoutError):
            return
        try:
            for subject in subjects:
                await client.publish(subject, json.dumps(document(MARK, reason=MARK)).encode())
            await client.flush(5)
            for _ in range(50):
                if len(violations) >= len(subjects):
                    break
                await asyncio.sleep(0.02)
            self.refused["bucket"] += sum("permissions violation" in each for each in violations)
        except (OSError, nats.errors.Error, TimeoutError):
            pass
        finally:
            await client.close()

    async def _objects(self) -> None:
        if self._cluster is None:
            return
        own = document(MARK, reason=MARK)
        patch = {"spec": {"kvLoadFailure": {"action": "fail"}}}
        for method, path, body in (
            ("POST", POLICIES, own),
            *(("PATCH", f"{POLICIES}/{name}", patch) for name in _NAMES),
            ("DELETE", f"{POLICIES}/objects-base", None),
            ("DELETE", POLICIES, None),
        ):
            try:
                status = await as_agent(self._cluster, method, path, body)
            except (aiohttp.ClientError, TimeoutError):
                return
            if status == 403:
                self.refused["objects"] += 1
            elif status < 400:
                self.taken.append(f"{method} {path}")

    async def _owned(self) -> None:
        for agent in self._agents:
            for method, request in (
                ("DeletePolicy", admin.DeletePolicyRequest(name="nats-base", author=MARK)),
                (
                    "ApplyPolicy",
                    admin.ApplyPolicyRequest(
                        manifest_json=json.dumps(document("nats-base", reason=MARK)), author=MARK, all=True
                    ),
                ),
                (
                    "RollbackPolicy",
                    admin.RollbackPolicyRequest(name="nats-base", to_generation=1, author=MARK),
                ),
            ):
                try:
                    await asyncio.to_thread(ask, agent.admin, method, request)
                except grpc.RpcError as error:
                    if "belongs to the policy source" not in str(error):
                        raise
                    self.refused["owned policies"] += 1
                else:
                    self.taken.append(method)


async def as_agent(cluster: ApiServer, method: str, path: str, body: Any = None) -> int:
    """Ask the API server with the agents' token; return the status."""
    headers = {
        "Authorization": f"Bearer {(cluster.place / 'token').read_text()}",
        "Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json",
    }
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
        session.request(
            method,
            f"{cluster.url}{path}",
            data=None if body is None else json.dumps(body),
            headers=headers,
            ssl=ssl.create_default_context(cafile=str(cluster.ca)),
        ) as response,
    ):
        return response.status
