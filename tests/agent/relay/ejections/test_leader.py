"""The leader asks, judges and orders: what it does when the lease, the policies or an agent's answer change."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.model import EngineKey
from penstock.agent.parsing import Target
from penstock.agent.policy.manifest import Manifest, check_manifest
from penstock.agent.relay.ejections import EjectionBoard, EjectionLeader, SeenFleet, Server, Vote
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable

_POOL = frozenset({"prefill servers of m"})


def _policy(name: str = "sick", mode: str = "enforce", **ejection: Any) -> Manifest:
    return check_manifest(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "TransferPolicy",
            "metadata": {"name": name},
            "spec": {"mode": mode, "ejection": {"action": "enforce", "after": "10s", **ejection}},
        }
    )


class _Fleet:
    """Three servers that have one engine each, and what was ordered; two readers accuse the first."""

    def __init__(self) -> None:
        self.orders: list[admin.SetEjectionRequest] = []
        self.entries: list[tuple[float, admin.AuditEntry]] = []
        self.logs_are_known = True
        self.silent: frozenset[str] = frozenset()
        self.order_of: admin.Ejection | None = None
        self.refusal = ""
        self.bad = True
        self.asked = 0

    async def seen(self) -> SeenFleet:
        self.asked += 1
        servers = [
            Server(
                name,
                name,
                (EngineKey(name, "0"),),
                _POOL,
                (f"{name}:1",),
                self.order_of if name == "a" else None,
            )
            for name in "abc"
        ]
        votes = {"a": [Vote(agent, self.bad, 5, "it refuses") for agent in ("x", "y")]}
        return SeenFleet(servers, votes, frozenset("abcxy"), self.silent)

    async def audit(self) -> tuple[dict[str, list[tuple[float, admin.AuditEntry]]], frozenset[str]]:
        return {"a": self.entries} if self.logs_are_known else {}, frozenset("abcxy")

    async def order(
        self,
        agent: str,
        request: admin.SetEjectionRequest,
        is_due: Callable[[admin.Ejection | None], bool],
    ) -> str:
        assert agent == "a"
        if not is_due(self.order_of):
            return "meanwhile"
        self.orders.append(request)
        return self.refusal


class _Lease:
    held = True


class _Scene:
    """A leader with a clock of its own."""

    def __init__(self, *policies: Manifest) -> None:
        self.fleet, self.lease, self.board = _Fleet(), _Lease(), EjectionBoard()
        self.policies: list[Manifest] | None = list(policies)
        self.now = time.time()
        targets = [Target(EngineKey(name, "0"), "m", {}) for name in "abc"]
        self.leader = EjectionLeader(
            self.fleet,
            self.lease,
            lambda: None if self.policies is None else (self.policies, targets),
            self.board,
            lambda: self.now,
        )

    async def looks(self, *after: float) -> list[str]:
        """Look after each of so many seconds more; return the words about the first server."""
        for seconds in after:
            self.now += seconds
            await self.leader.look()
        return [each.word for each in self.board.verdicts if each.server.name == "a"]

    def entry(
        self, action: str, author: str, seconds_ago: float, server: str = "", *, ahead: float = 0.0
    ) -> None:
        document = json.dumps({"server": server})
        entry = admin.AuditEntry(
            action=action, author=author, old_manifest_json=document, new_manifest_json=document
        )
        entry.time.FromNanoseconds(int((self.now + ahead - seconds_ago) * 1e9))
        self.fleet.entries.append((ahead, entry))


async def test_an_order() -> None:
    """It names the engines, the policy as its author and the evidence as its reason, and ends by itself."""
    scene = _Scene(_policy())
    assert await scene.looks(0, 5) == ["watched"]
    assert await scene.looks(5) == ["eject"]
    (order,) = scene.fleet.orders
    assert [(key.server, key.engine) for key in order.selector.engines] == [("a", "0")]
    assert (order.author, order.ttl.seconds) == ("relay (policy sick)", 60)
    assert order.reason == "2 of 2 readers (x, y) blame a:1, 10 failed loads: it refuses"
    assert scene.board.orders == {"observed": 0, "enforced": 1}
    answer = admin.ListEjectionsResponse()
    scene.board.add_to(answer, {("a", "0")})
    assert (answer.ejections[0].verdict, answer.ejections[0].policy) == ("ejected", "sick")


async def test_the_audit_log_is_its_memory() -> None:
    """Orders of the last hour by any relay that led make the next one longer; what is not one is passed over."""
    scene = _Scene(_policy())
    scene.entry("eject", "relay (policy other)", 1800)
    scene.entry("eject", "relay (policy other)", 4000)
    scene.entry("eject", "relay: maria", 1800)
    scene.entry("drill-start", "relay (policy other)", 10)
    broken = ("[", "[]", "{}", "[" * 100_000)
    scene.fleet.entries += [
        (0.0, admin.AuditEntry(action="eject", new_manifest_json=each)) for each in broken
    ]
    late = admin.AuditEntry(action="eject", new_manifest_json='{"server": ""}')
    late.time.seconds = 1 << 62
    scene.fleet.entries.append((0.0, late))
    await scene.looks(0, 10)
    assert [order.ttl.seconds for order in scene.fleet.orders] == [120]


async def test_a_person_undoes_it() -> None:
    """An end by somebody else holds for an hour."""
    scene = _Scene(_policy())
    # By a clock that is two hours behind.
    scene.entry("eject-off", "relay: maria", 60, ahead=-7200.0)
    assert await scene.looks(0, 10) == ["held_back"]
    assert scene.fleet.orders == []
    # What was read of it holds while its agent does not answer; nobody knows it after a change of the leader.
    scene.fleet.logs_are_known = False
    assert await scene.looks(5) == ["held_back"]
    assert "maria put it back" not in scene.board.verdicts[0].why
    assert "its agent's audit log was not read" in scene.board.verdicts[0].why


async def test_over_tls_an_agent_names_the_certificate() -> None:
    """Its own orders count as such, and end with the policy; a person's over the relay do not."""
    scene = _Scene(_policy())
    scene.entry("eject", "tls:penstock-relay (relay (policy sick))", 60)
    scene.entry("eject", "tls:penstock-relay (relay: maria)", 60)
    await scene.looks(0, 10)
    assert [order.ttl.seconds for order in scene.fleet.orders] == [120]
    scene.policies = []
    for author, ended in (
        ("tls:penstock-relay (relay (policy sick))", 2),
        ("tls:penstock-relay (relay: maria (policy x))", 2),
    ):
        scene.fleet.order_of = admin.Ejection(author=author)
        await scene.looks(5)
        assert len(scene.fleet.orders) == ended


async def test_somebody_is_faster() -> None:
    """What came between the look and the order is left as it is."""
    scene = _Scene(_policy())
    real = scene.fleet.audit

    async def audit() -> Any:
        scene.fleet.order_of = admin.Ejection(author="relay: maria")
        return await real()

    scene.fleet.audit = audit  # type: ignore[method-assign]
    assert await scene.looks(0, 10) == ["held_back"]
    assert scene.board.verdicts[0].why.endswith("; its agent did not take the order: meanwhile")
    assert scene.fleet.orders == []


@pytest.mark.parametrize("policy", [_policy(action="observe"), _policy(mode="observe")])
async def test_a_policy_that_observes(policy: Manifest) -> None:
    """Nothing is ordered; it is told and counted."""
    scene = _Scene(policy)
    assert await scene.looks(0, 10, 5) == ["would_eject"]
    assert (scene.fleet.orders, scene.board.orders["observed"]) == ([], 1)


async def test_an_agent_that_refuses() -> None:
    """It is asked again after a minute."""
    scene = _Scene(_policy())
    scene.fleet.refusal = "it cannot answer"
    assert await scene.looks(0, 10) == ["held_back"]
    await scene.looks(5, 5)
    assert (len(scene.fleet.orders), scene.board.orders["refused"]) == (1, 1)
    assert "its agent did not take the order: it cannot answer" in scene.board.verdicts[0].why
    await scene.looks(*[10] * 6)
    assert len(scene.fleet.orders) == 2


async def test_a_policy_that_goes_takes_its_orders_along() -> None:
    """Also one that observes now; orders of people stay."""
    scene = _Scene(_policy())
    scene.fleet.order_of = admin.Ejection(author="relay (policy sick)", reason="evidence")
    assert await scene.looks(0) == ["ejected"]
    assert scene.fleet.orders == []
    scene.policies = [_policy(action="observe")]
    await scene.looks(5)
    assert [order.HasField("ttl") for order in scene.fleet.orders] == [False]
    scene.policies = [_policy()]
    await scene.looks(5)
    scene.policies = []
    await scene.looks(5)
    assert len(scene.fleet.orders) == 2
    scene.policies = [_policy()]
    scene.fleet.order_of = admin.Ejection(author="relay: maria")
    await scene.looks(5)
    scene.policies = []
    await scene.looks(5, 5)
    assert len(scene.fleet.orders) == 2
    assert scene.board.undecided == "no policy of this relay's source sets ejection"


async def test_without_a_policy_nobody_is_asked() -> None:
    """But once, for orders of a leader before; an agent that is silent then is asked for as long as one can last."""
    scene = _Scene()
    scene.fleet.silent = frozenset("a")
    await scene.looks(0, 5)
    assert scene.fleet.asked == 2
    scene.fleet.silent = frozenset()
    await scene.looks(5, 5, 5)
    assert scene.fleet.asked == 3
    scene.fleet.silent = frozenset("a")
    scene.lease.held = False
    await scene.looks(5)
    scene.lease.held = True
    await scene.looks(5, 3600, 5)
    assert scene.fleet.asked == 4


async def test_nobody_is_asked_without_the_lease() -> None:
    """Nor while the policies are not known; what was seen before is forgotten with the lease."""
    scene = _Scene()
    scene.policies = None
    await scene.looks(5)
    assert scene.board.undecided.startswith("the policies are not known: ")
    assert scene.fleet.asked == 0
    scene.policies = [_policy()]
    assert await scene.looks(0, 5) == ["watched"]
    scene.lease.held = False
    assert await scene.looks(5) == []
    assert scene.board.undecided == "another relay leads; ask it, or this one once it does"
    scene.lease.held = True
    assert await scene.looks(5) == ["watched"]


async def test_the_strictest_of_a_servers_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes out as a whole: one engine that no policy is about keeps it in."""
    scene = _Scene(_policy())
    real = scene.fleet.seen

    async def seen() -> SeenFleet:
        found = await real()
        first = found.servers[0]._replace(keys=(*found.servers[0].keys, EngineKey("a", "1")))
        return found._replace(servers=[first, *found.servers[1:]])

    monkeypatch.setattr(scene.fleet, "seen", seen)
    assert await scene.looks(0, 10) == []
