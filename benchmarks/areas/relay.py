"""Hundreds of agents behind one relay: ``make bench ONLY=relay``.

Real agents, 25 to a process, each with two simulated engines that put in force what comes at once; a real relay and a real nats-server.
Measured are a list of all engines, the same when an agent has just begun to hang, and a policy from its write to the last engine.

The peer is what a program does without a relay: it calls the Admin service of each agent itself, over connections that are open, all at
once; and one after the other, as a loop of commands does. It writes the policy to each agent. All share two cores with all agents.
"""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from nats.js.api import KeyValueConfig
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from benchmarks.harness.interleave import take_turns
from benchmarks.harness.results import Budget, Row, Section, Spread, against
from tests.support.agent.agent import running_agent, short_directory, wait_until
from tests.support.agent.relay import RelayProcess, running_relay
from tests.support.fleet.many import ManyAgents
from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.harness.interleave import Run
    from tests.support.agent.agent import AgentProcess

AREA: Final = "relay"
TITLE: Final = "A fleet"
MEANING: Final = (
    "One relay in front of 200 agents, beside a program that asks each agent by itself. An agent that "
    "hangs costs its own row only."
)
_NOTES: Final = (
    (
        "200 real agents in 8 processes, each with 2 simulated engines, a real relay and a real nats-server, all on the cores of one machine. "
        "*A list*: of all engines. *An agent begins to hang*: it is stopped (SIGSTOP) right before the list, which names it as missing. "
        "*In force*: from the call that writes the policy to the bucket, to the moment in which the last of 400 engines has it. "
        "The peer asks, and writes to, each agent by itself, over open connections: all at once, or one after the other."
    ),
)
_AGENTS, _QUICK_AGENTS = 200, 40
_ENGINES = 2
_LISTS, _QUICK_LISTS = 60, 25
_HANGS = 30
_CHANGES = 400
_LIST_BUDGET: Final = Budget("a list of 200 agents, one of which begins to hang", 1_000)
_FORCE_BUDGET: Final = Budget("a policy in force on all engines of 200 agents, p99", 2_000)
_AT_ONCE, _BY_TURNS = "each agent asked, at once", "each agent asked, one after the other"
_WRITTEN = "written to each agent, at once"
_MS = 1e3
_DEADLINE = 60.0


class Direct:
    """The peer: connections of its own to all agents, on a loop of its own."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._stubs = self._wait(self._connect(addresses))

    def _wait(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(_DEADLINE)

    async def _connect(self, addresses: Sequence[str]) -> list[Any]:
        return [AdminStub(grpc.aio.insecure_channel(address)) for address in addresses]  # type: ignore[no-untyped-call]

    def list_at_once(self) -> float:
        """Return the seconds of a list, all asked at once."""
        began = time.perf_counter()
        self._wait(self._at_once("ListEngines", admin.ListEnginesRequest()))
        return time.perf_counter() - began

    async def _at_once(self, method: str, request: Any) -> None:
        await asyncio.gather(*(getattr(stub, method)(request, timeout=_DEADLINE) for stub in self._stubs))

    def list_by_turns(self) -> float:
        """Return the seconds of a list, one asked after the other."""

        async def ask() -> None:
            for stub in self._stubs:
                await stub.ListEngines(admin.ListEnginesRequest(), timeout=_DEADLINE)

        began = time.perf_counter()
        self._wait(ask())
        return time.perf_counter() - began

    def apply(self, request: admin.ApplyPolicyRequest) -> None:
        """Write a policy to all."""
        self._wait(self._at_once("ApplyPolicy", request))


class _Fleet:
    """The agents and their relay."""

    def __init__(self, many: ManyAgents, relay: RelayProcess, stub: AdminStub, direct: Direct) -> None:
        self._many = many
        self._relay = relay
        self._stub = stub
        self._direct = direct
        self._number = 0

    def list(self) -> float:
        """Return the seconds of a list through the relay."""
        began = time.perf_counter()
        self._stub.ListEngines(admin.ListEnginesRequest(), timeout=_DEADLINE)
        return time.perf_counter() - began

    def lists(self) -> dict[str, Any]:
        """Return what takes turns."""
        return {"": self.list, _AT_ONCE: self._direct.list_at_once, _BY_TURNS: self._direct.list_by_turns}

    def changes(self) -> dict[str, Any]:
        """Return what takes turns."""
        # The one that is written to the agents is above the other, and is the same for all while it changes.
        return {
            "": lambda: self._change(lambda request: self._stub.ApplyPolicy(request, timeout=_DEADLINE), "a"),
            _WRITTEN: lambda: self._change(self._direct.apply, "b"),
        }

    def _change(self, write: Any, name: str) -> float:
        """Write a policy; return the seconds until the last engine has it. Others of the same engines are below it."""
        self._number += 1
        before = {each.hash for each in self._many.in_force.values()}
        manifest = {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "TransferPolicy",
            "metadata": {"name": name},
            "spec": {
                "priority": self._number,
                "selector": {"matchLabels": {"role": "decode"}},
                "kvLoadFailure": {"action": "auto", "maxRecomputeTokens": self._number},
            },
        }
        began = time.monotonic()
        write(admin.ApplyPolicyRequest(manifest_json=json.dumps(manifest), author="benchmark", all=True))

        def everywhere() -> bool:
            now = {each.hash for each in [*self._many.in_force.values()]}
            return len(now) == 1 and not now & before

        wait_until(everywhere, "all engines have the policy")
        return max(each.since for each in self._many.in_force.values()) - began

    def list_when_one_hangs(self, agent: AgentProcess) -> float:
        """Return the seconds of a list right after *agent*, called ``hung``, has been stopped."""
        self._relay.wait_for(hung="up")
        assert agent.process is not None
        agent.process.send_signal(signal.SIGSTOP)
        try:
            return self.list()
        finally:
            agent.process.send_signal(signal.SIGCONT)


async def _bucket(server: NatsServer) -> None:
    client = await server.client()
    await client.jetstream().create_key_value(KeyValueConfig(bucket="policies", history=8))
    await client.close()


@contextmanager
def _fleet(agents: int, *, policies: bool) -> Iterator[tuple[_Fleet, AgentProcess]]:
    """Run it; also an agent more, called ``hung``."""
    with ExitStack() as parts:
        directory = parts.enter_context(short_directory())
        source = []
        if policies:
            server = NatsServer(Path(parts.enter_context(tempfile.TemporaryDirectory()))).start()
            parts.callback(server.kill)
            asyncio.run(_bucket(server))
            source = [f"--policy-source={server.url}/policies"]
        many = ManyAgents(directory, agents, *source, engines=_ENGINES)
        parts.callback(many.stop)
        many.start()
        hung = parts.enter_context(running_agent(source))
        relay = parts.enter_context(
            running_relay(directory, f"--agents={many.listed},hung={hung.admin}", *source)
        )
        relay.wait_for(**dict.fromkeys(many.names, "up"), hung="up")
        direct = Direct([place.partition("=")[2] for place in many.listed.split(",")])
        channel = parts.enter_context(grpc.insecure_channel(relay.address))
        stub = AdminStub(channel)  # type: ignore[no-untyped-call]
        yield _Fleet(many, relay, stub, direct), hung


def measure(run: Run) -> Section:
    """Measure the area."""
    agents = _QUICK_AGENTS if run.quick else _AGENTS
    group = f"{agents} agents, {agents * _ENGINES} engines"
    run.say(f"{group} start")
    with _fleet(agents, policies=not run.quick) as (fleet, hung):
        fleet.list()
        found = take_turns(fleet.lists(), _QUICK_LISTS if run.quick else _LISTS, run.say)
        rows = [_row("a list", found, peer, group) for peer in (_AT_ONCE, _BY_TURNS)]
        if not run.quick:
            run.say("lists while an agent begins to hang")
            hangs = [fleet.list_when_one_hangs(hung) * _MS for _ in range(_HANGS)]
            rows.append(
                Row("a list, an agent begins to hang", "ms", Spread.of(hangs), group, budget=_LIST_BUDGET)
            )
            run.say("changes of a policy")
            found = take_turns(fleet.changes(), _CHANGES, run.say)
            rows.append(_row("a policy in force on all", found, _WRITTEN, group))
            slowest = [took * _MS for took in found[""]]
            rows.append(
                Row(
                    "a policy in force on all, p99", "ms", Spread.percentile(slowest, 99), group,
                    budget=_FORCE_BUDGET,
                )
            )  # fmt: skip
    return Section(AREA, TITLE, _NOTES, rows)


def _row(what: str, found: dict[str, list[float]], peer: str, group: str) -> Row:
    ours, theirs = ([took * _MS for took in found[name]] for name in ("", peer))
    return against(what, "ms", ours, peer, theirs, group=group)
