"""Which objects' status is written, and in which order, where some are refused; a double of the API server's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from penstock.agent.errors import ClusterError, ConflictError, NotFoundError
from penstock.agent.relay.object_status.object_status import FleetWords
from penstock.agent.relay.object_status.writer import WRITE_SECONDS, StatusWriter
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.policy.policies import document

if TYPE_CHECKING:
    from penstock.agent.policy.kubernetes import ApiClient, ClusterAccess
    from penstock.agent.relay.object_status import Lease


class _Lease:
    held = True


class _Client:
    """Objects without status, and what becomes of each write."""

    def __init__(self, names: str) -> None:
        self.names = names
        self.errors: dict[str, Exception] = {}
        self.asked: list[str] = []
        self.objects: dict[str, dict[str, Any]] = {}
        self.written: dict[str, dict[str, Any]] = {}

    async def list_values(self) -> list[dict[str, Any]]:
        found = []
        for name in self.names:
            head = {"name": name, "generation": 1, "resourceVersion": f"1{name}"}
            found.append({**self.objects.get(name, {}), "metadata": head})
        return found

    async def patch_status(self, name: str, version: str, status: dict[str, Any]) -> None:
        assert version == f"1{name}"
        self.asked.append(name)
        if name in self.errors:
            raise self.errors[name]
        self.written[name] = status


class _Stage:
    def __init__(self, names: str) -> None:
        self.client = _Client(names)
        self._now = 0.0
        self.writer = StatusWriter(
            cast("ClusterAccess", None), cast("Lease", _Lease()), self._words, clock=lambda: self._now
        )

    async def _words(self) -> FleetWords:
        return FleetWords({}, {}, ())

    async def look(self) -> str:
        """Look when all may be written again; return which were tried."""
        self._now += WRITE_SECONDS
        self.client.asked = []
        await self.writer.look(cast("ApiClient", self.client))
        return "".join(self.client.asked)


async def test_one_that_is_refused_starves_no_other() -> None:
    """The others are written, the refusal is raised; next time it comes last."""
    stage = _Stage("abcd")
    stage.client.errors["a"] = ClusterError("refused by a webhook")
    with pytest.raises(ClusterError, match="webhook"):
        await stage.look()
    assert stage.client.asked == ["a", "b", "c", "d"]
    assert stage.writer.patches == {"ok": 3, "failed": 1}


async def test_objects_that_are_gone_or_changed_are_no_failures() -> None:
    """The next look sees what there is."""
    stage = _Stage("abc")
    stage.client.errors = {"a": NotFoundError("gone"), "b": ConflictError("changed")}
    assert await stage.look() == "abc"
    assert stage.writer.patches == {"ok": 1}


async def test_a_server_that_is_away_is_not_asked_for_each() -> None:
    """After three failures it is left alone, after one if it says for how long; then the others come first."""
    stage = _Stage("abcdef")
    stage.client.errors = dict.fromkeys("abcdef", ClusterError("away"))
    with pytest.raises(ClusterError):
        await stage.look()
    assert stage.client.asked == ["a", "b", "c"]
    with pytest.raises(ClusterError):
        await stage.look()
    assert stage.client.asked == ["d", "e", "f"]
    stage.client.errors = dict.fromkeys("abcdef", ClusterError("too many requests", retry_after=3.0))
    with pytest.raises(ClusterError):
        await stage.look()
    assert stage.client.asked == ["a"]


async def test_an_expired_policy() -> None:
    """Its conditions say so, whatever the agents say: they have left it out."""
    stage = _Stage("a")
    expired = document("a", expiresAt="2026-01-01T00:00:00Z")
    stage.client.objects["a"] = expired
    await stage.look()
    conditions = {each["type"]: each for each in stage.client.written["a"]["conditions"]}
    assert {kind: each["status"] for kind, each in conditions.items()} == {
        "Accepted": "True",
        "Programmed": "False",
        "Degraded": "False",
    }
    assert {each["reason"] for each in conditions.values()} == {"Expired"}


def test_half_an_answer_is_none() -> None:
    """An agent that says its policies and not its status is missing."""
    policies = [admin.Policy(name="p", manifest_json="{}", engines_selected=1, engines_in_force=1)]
    words = FleetWords({"a": policies, "b": policies}, {"a": admin.AgentStatus()}, ["c"])
    assert words.missing == ("b", "c")
    assert [each.agent for each in words.about("p", "{}")] == ["a"]
