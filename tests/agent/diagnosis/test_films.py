"""Incidents as films: what is said first from a calm minute before each until ten minutes after its remedy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.agent.evidence.served import BundleServer
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.incidents.claims import Claims, contradictions
from tests.support.incidents.films import ALERTS, FILMS, PHASES, RECORDED
from tests.support.incidents.table import CANNOT_TELL, CAUSES

if TYPE_CHECKING:
    from tests.support.incidents.films import Film

# Of each film the fault, and of these all phases: several causes, none that can be told, one that takes another's place.
_FAULT = "minute"
_WHOLE = {"two-causes", "rebalances-stall", "load-never-starts"}
_FILMED = [
    pytest.param(
        film,
        phase,
        id=f"{film.name}-{phase}",
        marks=[] if phase == _FAULT or film.name in _WHOLE else pytest.mark.long,
    )
    for film in FILMS.values()
    for phase in PHASES
]


def _claims(film: Film, phase: str) -> Claims:
    server = BundleServer(RECORDED / film.name / f"{phase}.bundle")
    try:
        with grpc.insecure_channel(server.address) as channel:
            return Claims.of(AdminStub(channel), server.now)
    finally:
        server.close()


@pytest.mark.parametrize(("film", "phase"), _FILMED)
def test_the_headline_of_each_phase(film: Film, phase: str) -> None:
    """What lasts and nothing else, the cause before what it brings about; and no verb says another thing."""
    claims = _claims(film, phase)
    code, kind = film.expected(phase)
    first = claims.lasting[0].kind if claims.lasting else ""
    assert (first, bool(claims.lasting)) == (kind, code == CAUSES), claims.diagnosis.sentence
    assert (code != CANNOT_TELL) or claims.diagnosis.verdict == admin.DIAGNOSIS_VERDICT_CANNOT_TELL
    assert contradictions(claims) == []


_WITH_ALERTS = sorted(path.parent.name for path in RECORDED.glob(f"*/{ALERTS}"))


@pytest.mark.parametrize("name", _WITH_ALERTS)
def test_alerts_fire_while_something_is_wrong(name: str) -> None:
    """Those that are expected, and none in the calm before and after; a critical one only where a cause lasts, or did until now."""
    phases = json.loads((RECORDED / name / ALERTS).read_text())
    film = FILMS[name]
    assert phases["calm"] == phases["after"] == []
    assert {each["alertname"] for fired in phases.values() for each in fired} == film.alerts
    for phase, fired in phases.items():
        critical = [each for each in fired if each["severity"] == "critical"]
        assert not critical or phase == "remedied" or film.expected(phase)[1], phase


def test_all_films_are_whole() -> None:
    """Each has all phases, and none is left that is not in the table."""
    recorded = {(path.parent.name, path.stem) for path in RECORDED.glob("*/*.bundle")}
    assert recorded == {(name, phase) for name in FILMS for phase in PHASES}
