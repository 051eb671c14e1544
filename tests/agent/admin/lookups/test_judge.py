"""The judgement that other answers quote, and its metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from penstock.agent.admin.lookups import Judge
from penstock.agent.daemon.status_report import condition_families
from penstock.agent.errors import StateError
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.asyncio


class _Court:
    """A judge, a clock that stands still, and diagnoses that each take *took* seconds."""

    def __init__(self, took: float) -> None:
        self.now, self.took, self.made = 100.0, took, 0
        self.fails = False
        self.judge = Judge(lambda: self.now)

    async def diagnose(self) -> admin.Diagnosis:
        """Make one."""
        await asyncio.sleep(0)
        self.now += self.took
        self.made += 1
        if self.fails:
            raise StateError("the log cannot be read")
        return admin.Diagnosis(engines=self.made)

    async def ask(self) -> int:
        """Return the number of the judgement; 0 for none."""
        found = await self.judge.judgement(self.diagnose)
        return found.engines if found is not None else 0


@pytest.mark.parametrize(
    ("took", "pauses", "made"),
    [
        pytest.param(0.001, (0.5, 0.6, 0.0), [1, 1, 2], id="fresh for a second"),
        pytest.param(0.2, (5.0, 6.0, 0.0), [1, 1, 2], id="fifty times what it takes"),
    ],
)
async def test_how_often(took: float, pauses: tuple[float, ...], made: list[int]) -> None:
    """Within a second, and within fifty times its cost, the same one is given."""
    court = _Court(took)
    found = []
    for pause in pauses:
        found.append(await court.ask())
        court.now += pause
    assert found == made


async def test_who_asks_at_once_waits_for_one() -> None:
    """A hundred that ask together are one diagnosis."""
    court = _Court(0.01)
    assert set(await asyncio.gather(*(court.ask() for _ in range(100)))) == {1}
    assert court.made == 1


async def test_without_a_log() -> None:
    """Nothing is quoted that no longer holds, and the next one comes once it can be made."""
    court = _Court(0.0)
    assert await court.ask() == 1
    court.now, court.fails = court.now + 2, True
    assert await court.ask() == 0
    assert court.judge.latest is None
    court.now, court.fails = court.now + 2, False
    assert await court.ask() == 3


async def test_a_defect_does_not_end_the_judging() -> None:
    """A rule that raises is logged, nothing older is quoted, and the next time comes."""
    judge, made = Judge(), asyncio.Event()

    async def broken() -> admin.Diagnosis:
        if not made.is_set():
            made.set()
            raise ZeroDivisionError
        return admin.Diagnosis()

    judging = asyncio.ensure_future(judge.keep_judging(broken, period=0.001))
    while judge.latest is None:
        await asyncio.sleep(0.01)
        assert not judging.done()
    judging.cancel()


def _cause(kind: str, *names: str, ended: bool = False, **fields: object) -> admin.DiagnosedCause:
    keys = [EngineKey(server=name, engine="0") for name in names]
    cause = admin.DiagnosedCause(kind=kind, engines=keys, **fields)  # type: ignore[arg-type]
    if ended:
        cause.until.FromSeconds(5)
    return cause


_CERTAIN = admin.DIAGNOSIS_CONFIDENCE_CERTAIN


def _two() -> admin.Diagnosis:
    judgement = admin.Diagnosis(
        causes=[
            _cause("peer_refuses", "a", "b", peer="10.0.0.7:5600", confidence=_CERTAIN),
            _cause("no_transfer_parameters", "a", effects=[_cause("leases_expire", "p")]),
            _cause("policy_fails_loads", "a", ended=True),
            _cause("agent_blind"),
        ],
        harmless_late_reads=[{"server": "p", "engine": "0"}],
    )
    judgement.at.FromSeconds(1_000)
    return judgement


@pytest.mark.parametrize(
    ("judgement", "series"),
    [
        pytest.param(lambda: None, {}, id="none yet"),
        pytest.param(
            _two,
            {
                "penstock_condition": {
                    ("peer_refuses", "a", "0", "10.0.0.7:5600", "certain"): 1,
                    ("peer_refuses", "b", "0", "10.0.0.7:5600", "certain"): 1,
                    ("no_transfer_parameters", "a", "0", "", "possible"): 1,
                    ("agent_blind", "", "", "", "possible"): 1,
                },
                "penstock_late_reads_harmless": {("p", "0"): 1},
                "penstock_condition_judged_timestamp_seconds": {(): 1_000},
            },
            id="what lasts, without effects and what has ended",
        ),
    ],
)
async def test_the_gauges(
    judgement: Callable[[], admin.Diagnosis | None], series: dict[str, dict[tuple[str, ...], float]]
) -> None:
    """One series an engine."""
    found = {
        family.metric.name: {sample.labels: sample.value for sample in family.samples}
        for family in condition_families(judgement())
    }
    assert found == series


async def test_the_gauges_are_bounded() -> None:
    """A cause of a thousand engines has 512 series, and so have late reads of as many."""
    names = [f"s{n}" for n in range(1_000)]
    many = admin.Diagnosis(
        causes=[_cause("peer_refuses", *names)],
        harmless_late_reads=[EngineKey(server=name) for name in names],
    )
    conditions, harmless, _ = condition_families(many)
    assert len(list(conditions.samples)) == len(list(harmless.samples)) == 512
