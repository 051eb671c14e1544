"""One answer about the agent for health, status and metrics."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from penstock.agent.daemon.health import REASONS, Health
from penstock.agent.daemon.housekeeping import Housekeeper
from penstock.agent.daemon.status_report import StateGauges
from penstock.agent.errors import DamageError, StateError, TakenError
from penstock.agent.journal.journal import Journal
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.state.archive import DatabaseFiles
from penstock.agent.state.budget import MIN_LIMIT
from penstock.agent.state.directory import LOCK, StateDirectory


@pytest.fixture
async def condition(tmp_path):
    """Return the condition of a journal in a state directory."""
    condition = Health()
    condition.place = StateDirectory(tmp_path / "state", MIN_LIMIT)
    condition.journal = Journal.open(condition.place.path, limit=MIN_LIMIT)
    condition.policies = PolicyDatabase.open(condition.place.path)
    yield condition
    condition.policies.close()
    await condition.journal.close()
    condition.place.release()


def test_before_anything_has_begun():
    """It works, as far as it goes, and is not ready."""
    condition = Health()
    assert (condition.health(), condition.degraded()) == ("", "")
    assert condition.readiness() == "the agent is starting"


async def test_all_is_well(condition):
    """Nothing to say."""
    condition.phase = "serving"
    assert (condition.health(), condition.readiness(), condition.degraded()) == ("", "", "")


async def test_troubles(condition, monkeypatch):
    """Each has its reason and its sentence, in health only what a restart may help with."""
    condition.phase = "serving"
    condition.place.trouble = "no disk"
    condition.not_copied = "no copy"
    condition.sources = SimpleNamespace(problem=lambda: "the source is away")
    condition.registration = SimpleNamespace(error="the registry is away")
    monkeypatch.setattr(DatabaseFiles, "notice", "put back")
    condition.journal._writer.error = "no room"
    condition.journal.damage = "damaged"
    condition.memory_short = "no memory"
    (condition.place.path / "state.corrupt-1").mkdir()
    (condition.place.path / "state.corrupt-1" / "policy.db").touch()
    assert [trouble.reason for trouble in condition.troubles()] == list(REASONS)
    assert condition.degraded().startswith(
        "no disk; no room; damaged; no memory; databases were set aside (1 of policy)"
    )
    assert (condition.health(), condition.readiness()) == ("damaged", "no room")
    condition.journal._writer.error = ""
    assert condition.readiness() == "no memory"
    condition.place.trouble = ""


async def test_a_writer_that_has_ended(condition):
    """Nothing can be acknowledged any more."""
    await condition.journal.close()
    assert condition.health() == "the journal's writer has ended"


async def test_metrics_of_the_state(condition):
    """Every reason is there, so that an alert has a series to look at."""
    condition.not_copied = "no copy"
    families = {
        family.metric.name: {sample.labels: sample.value for sample in family.samples}
        for family in StateGauges(condition.place, condition.journal, condition).families()
    }
    assert families["penstock_agent_degraded"] == {
        (reason,): reason == "policies_not_copied" for reason in REASONS
    }
    for name in ("penstock_agent_databases_set_aside", "penstock_agent_databases_restored_total"):
        assert families[name] == {("journal",): 0, ("policy",): 0}
    assert families["penstock_agent_state_limit_bytes"] == {(): MIN_LIMIT}
    assert 0 < families["penstock_agent_state_bytes"][()] < MIN_LIMIT
    assert families["penstock_agent_pruned_batches_total"] == {("true",): 0, ("false",): 0}
    assert "penstock_agent_log_oldest_timestamp_seconds" not in families


@pytest.mark.parametrize(
    ("attribute", "value", "sentence"),
    [("damage", "damaged", "damaged"), ("alive", False, "the journal's writer has ended")],
)
async def test_housekeeping(condition, monkeypatch, attribute, value, sentence):
    """The policies' copy is written, a copy that fails shows, damage or the end of the writer ends the agent."""
    monkeypatch.setattr("penstock.agent.daemon.housekeeping._SECONDS", 0.001)
    database = condition.policies
    fatal = asyncio.get_running_loop().create_future()
    copied = asyncio.Event()
    loop = asyncio.get_running_loop()
    copy = database.copy
    outcomes = iter([StateError("no room for a copy")])

    def copying() -> None:
        loop.call_soon_threadsafe(copied.set)
        error = next(outcomes, None)
        if error is not None:
            raise error
        copy()

    monkeypatch.setattr(database, "copy", copying)
    house = Housekeeper(condition.place, database, condition, str, fatal)
    await asyncio.wait_for(copied.wait(), 60)
    async with asyncio.timeout(60):
        while condition.not_copied or not (condition.place.path / "policy-copy.db").exists():  # noqa: ASYNC110  (a thread)
            await asyncio.sleep(0.001)
    journal = Mock(wraps=condition.journal, damage="", error="", alive=True)
    monkeypatch.setattr(condition, "journal", journal)
    setattr(journal, attribute, value)
    error = await asyncio.wait_for(fatal, 60)
    assert isinstance(error, DamageError)
    assert str(error) == sentence
    assert condition.not_copied == ""
    await house.stop()


async def test_housekeeping_of_the_place(condition, monkeypatch):
    """A lock that was removed is taken again; the agent ends if another one has it."""
    monkeypatch.setattr("penstock.agent.daemon.housekeeping._SECONDS", 0.001)
    lock = condition.place.path / LOCK
    fatal = asyncio.get_running_loop().create_future()
    house = Housekeeper(condition.place, condition.policies, condition, str, fatal)
    lock.unlink()
    async with asyncio.timeout(60):
        while not lock.exists():  # noqa: ASYNC110  (a thread)
            await asyncio.sleep(0.001)
    await house.stop()
    lock.unlink()
    other = StateDirectory(condition.place.path, MIN_LIMIT)
    house = Housekeeper(condition.place, condition.policies, condition, str, fatal)
    assert isinstance(await asyncio.wait_for(fatal, 60), TakenError)
    await house.stop()
    other.release()
