"""A reflex that a manifest offers as enforce harms in no recorded film: it fails no load, and loses no more time than it saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from penstock.agent.evidence.served import BundleServer
from penstock.agent.policy.manifest.json_schema import schema
from penstock.agent.replay import KINDS, OwnOutcomes, Recording, ReflexCounts, replay
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub
from penstock.rules import ALL_REFLEXES, NO_POLICY, RECOMPUTE_STORM, SLOW_PEER, START_WAIT

from tests.support.incidents.films import FILMS, PHASES, RECORDED

if TYPE_CHECKING:
    from collections.abc import Iterator

# Those in which the decode engine computes prompts itself, one with slow loads, and one without any incident.
_SHORT = {"router-of-a-third", "two-causes", "stale-reference", "calm"}
_LONG = pytest.mark.long
_WEEK = Duration(seconds=7 * 86_400)
_END = 2**62


def _offered(field: str) -> list[str]:
    """Return the actions that the manifest's schema offers for a reflex."""
    names = {
        START_WAIT: "StartWaitReflex",
        SLOW_PEER: "SlowPeerReflex",
        RECOMPUTE_STORM: "RecomputeStormReflex",
    }
    action: dict[str, Any] = schema()["$defs"][names[field]]["properties"]["action"]
    (words,) = [each for each in action["anyOf"] if each != {"type": "null"}]
    return list(words.get("enum", [words.get("const")]))


def _harms(field: str, counts: Any, saved: int, lost: int) -> list[str]:
    found = [f"{field} loses {lost} ns and saves {saved} ns"] if lost > saved else []
    return found + ([f"{field} fails {counts.failed} loads"] if counts.failed else [])


def _check(field: str, harms: list[str]) -> None:
    assert not harms or "enforce" not in _offered(field), harms


@pytest.mark.parametrize(
    ("film", "phase"),
    [
        pytest.param(
            film, phase, id=f"{film}-{phase}", marks=[] if film in _SHORT and phase == "after" else _LONG
        )
        for film in FILMS
        for phase in PHASES
    ],
)
def test_what_is_offered_harms_in_no_film(film: str, phase: str) -> None:
    """By what the engines of the film have measured themselves."""
    server = BundleServer(RECORDED / film / f"{phase}.bundle")
    try:
        with grpc.insecure_channel(server.address) as channel:
            request = admin.WhatIfRequest(reflexes=True, since=_WEEK)
            answer = AdminStub(channel).WhatIf(request)
    finally:
        server.close()
    for engine in answer.engines:
        assert {each.field for each in engine.reflexes} == {START_WAIT, SLOW_PEER, RECOMPUTE_STORM}
        assert engine.would.failed <= engine.was.failed
        for each in engine.reflexes:
            saved, lost = each.saved.ToNanoseconds(), each.lost.ToNanoseconds()
            _check(each.field, _harms(each.field, each, saved, lost))
    if (film, phase) == ("router-of-a-third", "after"):
        # The decode engine has computed a third of the prompts: here the reflexes know what that takes, and act.
        (engine,) = answer.engines
        times = {each.field: each.times for each in engine.reflexes}
        assert times[START_WAIT] > 0 < times[SLOW_PEER]
    if (film, phase) == ("calm", "after"):
        # It has computed none, so that nothing is known, and that is said.
        (engine,) = answer.engines
        assert {each.field: (each.times, each.price_unknown == each.asked) for each in engine.reflexes} == {
            START_WAIT: (0, True),
            SLOW_PEER: (0, True),
            RECOMPUTE_STORM: (0, True),
        }


def _events(film: str) -> Iterator[admin.LoggedEvent]:
    server = BundleServer(RECORDED / film / "after.bundle")
    try:
        with grpc.insecure_channel(server.address) as channel:
            request = admin.ListEventsRequest(kinds=KINDS, since=_WEEK, limit=10_000)
            yield from AdminStub(channel).ListEvents(request).events
    finally:
        server.close()


@pytest.mark.parametrize(
    "film", [pytest.param(film, marks=[] if film in _SHORT else _LONG) for film in FILMS]
)
def test_nor_where_the_price_is_known(film: str) -> None:
    """In most films decode computes no prompt: with what the prefill engines of the film have measured it would act."""
    recordings: dict[tuple[str, str], Recording] = {}
    events = list(_events(film))
    for each in events:
        recordings.setdefault((each.key.server, each.key.engine), Recording()).add(each.event)
    for key, recording in recordings.items():
        if not recording.loads().loads:
            continue
        for each in events:
            computed = (
                each.event.HasField("request_closed") and not each.event.request_closed.external_cached_tokens
            )
            if computed and (each.key.server, each.key.engine) != key:
                recording.add(each.event)
        found = replay(recording.loads(), NO_POLICY, OwnOutcomes(), _END, ALL_REFLEXES).reflexes
        for field, counts in found.items():
            _check(field, _harms(field, counts, counts.saved_ns, counts.lost_ns))
        if film == "stale-reference":
            assert found[START_WAIT].times > 0 < found[SLOW_PEER].times


def test_a_storm_is_not_offered() -> None:
    """It would fail requests that are recomputed: in no film there is one, so the films say nothing for it."""
    assert _offered(RECOMPUTE_STORM) == ["observe"]
    assert _offered(START_WAIT) == _offered(SLOW_PEER) == ["observe", "enforce"]
    harmful = ReflexCounts(failed=1)
    assert _harms(START_WAIT, harmful, 2, 3) == [
        f"{START_WAIT} loses 3 ns and saves 2 ns",
        f"{START_WAIT} fails 1 loads",
    ]
