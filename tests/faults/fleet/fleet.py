"""Two real agents with simulated engines, a relay before them, and a source in this process; they follow what others kill."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import grpc
from google.protobuf.json_format import MessageToDict
from penstock.agent.policy.sources.follower import SourceFollower
from penstock.agent.policy.sources.nats.connection import NatsAccess
from penstock.agent.policy.sources.nats.source import NatsSource
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.faults.fleet.expected import Ledger, effective, owners
from tests.faults.fleet.writers import BUCKET, number_of
from tests.support.agent.agent import HASTY_AGENT, AgentProcess
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import RelayProcess
from tests.support.policy.feed import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

ROLES = ("decode", "prefill")
OBJECTS = "kubernetes:default"
# Until all have what was written last.
_SETTLE_SECONDS = 180.0


class FollowingEngine:
    """A simulated engine that acknowledges each push.

    Attributes:
        fields: what it has in force, by path.
        losses: pushes without a field of *lasting* that an earlier push had.

    """

    def __init__(self, agent: AgentProcess, role: str, lasting: Sequence[str]) -> None:
        self.role = role
        self.feed = Engine(agent.listen, role, role=role)
        # `get engines` lists those that send.
        self.sends = FakeEngine(agent.listen, engine=role, labels={"role": role})
        self.fields: dict[str, str] = {}
        self.losses: list[dict[str, str]] = []
        self._lasting = lasting
        self._had: set[str] = set()

    async def obey(self) -> None:
        """Acknowledge each push, until cancelled."""
        while True:
            push = await self.feed._stream.read()
            self.fields = _fields(push)
            if self._had - self.fields.keys():
                self.losses.append(self.fields)
            self._had |= self.fields.keys() & set(self._lasting)
            await self.feed.ack(push)


def _fields(push: Any) -> dict[str, str]:
    body = MessageToDict(push.schedule[0].body) if push.schedule else {}
    return {
        f"{section}.{key}": str(value).removeprefix("FAILURE_ACTION_").lower()
        for section, values in body.items()
        for key, value in values.items()
    }


class Fleet:
    """The followers of *places*: agent ``a`` takes them in their order, agent ``b`` the other way round.

    Attributes:
        places: what each policy source has, by its name.
        engines: by agent.

    """

    def __init__(
        self,
        directory: Path,
        servers: Sequence[str],
        places: Mapping[str, Ledger],
        objects: Sequence[str],
        lasting: Sequence[str],
    ) -> None:
        """Follow *places*; *objects* are the flags of the source of Kubernetes objects, none without it."""
        self.places = places
        self._directory = directory
        self._lasting = lasting
        bucket, *others = places
        user = bucket.replace("nats://", "nats://agent:a@")
        orders = {"a": [user, *others], "b": [*others, user]}
        self.agents: dict[str, AgentProcess] = {}
        for name, sources in orders.items():
            (directory / name).mkdir()
            flags = [f"--policy-source={source}" for source in sources]
            self.agents[name] = AgentProcess(directory / name, [*flags, *objects], module=HASTY_AGENT)
        listed = ",".join(f"{name}={agent.admin}" for name, agent in self.agents.items())
        self.relay = RelayProcess(directory, f"--agents={listed}", "--deadline=2s")
        self.engines: dict[str, list[FollowingEngine]] = {}
        self._access = NatsAccess(tuple(servers), "agent", "a")
        self._parts = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start all."""
        parts = self._parts
        try:
            for name, agent in self.agents.items():
                parts.callback(agent.kill)
                await asyncio.to_thread(agent.start)
                self.engines[name] = [FollowingEngine(agent, role, self._lasting) for role in ROLES]
                for engine in self.engines[name]:
                    await parts.enter_async_context(engine.feed)
                    parts.enter_context(engine.sends)
                    parts.callback(asyncio.ensure_future(engine.obey()).cancel)
            parts.callback(self.relay.stop)
            await asyncio.to_thread(self.relay.start)
            database = PolicyDatabase.open(self._directory)
            parts.callback(database.close)
            self.store = PolicyStore(database)
            bucket = next(iter(self.places))
            self.source = SourceFollower([NatsSource(bucket, self._access, BUCKET)], self.store)
            parts.push_async_callback(self.source.stop)
            await self.source.start()
        except BaseException:
            await parts.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill all."""
        await self._parts.aclose()

    def order(self, agent: str) -> dict[str, Ledger]:
        """Return the places in the order of an agent."""
        names = list(self.places)
        return {name: self.places[name] for name in (names if agent == "a" else [*names[1:], names[0]])}

    async def settles(self) -> None:
        """Wait until each follower has what the model computes; fail with what differs."""
        for agent, engines in self.engines.items():
            order = self.order(agent)
            for engine in engines:
                wanted = effective(list(order.values()), engine.role)
                await _until(
                    lambda engine=engine, wanted=wanted: engine.fields == wanted,  # type: ignore[misc]
                    lambda agent=agent, engine=engine, wanted=wanted: (  # type: ignore[misc]
                        f"{agent}/{engine.role} has {engine.fields}, not {wanted}"
                    ),
                )
            newest = {
                name: (place, order[place].newest[name].number) for name, place in owners(order).items()
            }
            end = time.monotonic() + _SETTLE_SECONDS
            while (found := await self._listed(agent)) != newest:
                assert time.monotonic() < end, f"{agent} lists {found}, not {newest}"
                await asyncio.sleep(0.5)
        bucket = next(iter(self.places.values()))
        numbers = {name: each.number for name, each in bucket.present().items()}
        await _until(
            lambda: self._numbers() == numbers,
            lambda: f"the source has {self._numbers()}, not {numbers}: {self.source.states()}",
        )

    async def _listed(self, agent: str) -> dict[str, tuple[str, int]]:
        """Return owner and change of each policy of an agent."""
        address = self.agents[agent].admin
        answer = await asyncio.to_thread(ask, address, "ListPolicies", admin.ListPoliciesRequest())
        return {
            each.name: (each.owner, number_of(json.loads(each.manifest_json))[0]) for each in answer.policies
        }

    def _numbers(self) -> dict[str, int]:
        return {
            each.manifest.name: number_of(json.loads(each.manifest.canonical))[0]
            for each in self.store.policies()
        }

    async def authors(self) -> set[str]:
        """Return who changed policies, by the audit logs of both agents."""
        request = admin.ListAuditRequest(limit=10_000)
        return {
            entry.author
            for agent in self.agents.values()
            for entry in (await asyncio.to_thread(ask, agent.admin, "ListAudit", request)).entries
        }

    def losses(self) -> list[dict[str, str]]:
        """Return the pushes that took away what nobody took back."""
        return [each for engines in self.engines.values() for engine in engines for each in engine.losses]


def ask(address: str, method: str, request: Any) -> Any:
    """Call the admin service at *address*."""
    with grpc.insecure_channel(address) as channel:
        return getattr(AdminStub(channel), method)(request, timeout=30)


async def _until(condition: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    end = time.monotonic() + _SETTLE_SECONDS
    while not condition():
        assert time.monotonic() < end, otherwise()
        await asyncio.sleep(0.1)
