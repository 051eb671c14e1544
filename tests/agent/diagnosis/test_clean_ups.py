"""vLLM's clean-up requests of recorded incidents: they are no harmed requests, and lists say what they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.incidents.asking import asked
from tests.support.incidents.table import INCIDENTS

# Of each recording: users' requests that the first cause harmed, and clean-ups beside them.
_HARMED = {"prefill-killed": (4, 4), "half-incompatible": (3, 3), "fail-everywhere": (4, 4)}
each_incident = pytest.mark.parametrize("name", _HARMED)


def _requests(name: str) -> list[dict[str, Any]]:
    incident = INCIDENTS[name]
    found: list[dict[str, Any]] = json.loads(
        asked(incident, "get", "requests", "--limit", "1000", "-o", "json").stdout
    )["requests"]
    return found


@each_incident
def test_a_user_s_request_counts_once(name: str) -> None:
    """Its clean-up is no second one."""
    incident = INCIDENTS[name]
    ran = asked(incident, "diagnose", "--since", incident.window, "-o", "json")
    first = json.loads(ran.stdout)["causes"][0]
    assert (first["requests"], first["requestsFailed"]) == (_HARMED[name][0],) * 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("prefill-killed", ("4 failures handshake/refused", "8 closed requests, 4 waits, 4 failures")),
        ("half-incompatible", ("3 handshakes failed as incompatible",)),
    ],
)
def test_failures_are_those_of_users_requests(name: str, words: tuple[str, ...]) -> None:
    """Neither among the evidence nor among what was looked at is one of a clean-up."""
    incident = INCIDENTS[name]
    said = asked(incident, "diagnose", "--since", incident.window).stdout
    for word in words:
        assert word in said


@each_incident
def test_a_list_says_clean_up(name: str) -> None:
    """And not that an aborted request is well."""
    found = [each for each in _requests(name) if each["finishReason"] == "clean-up"]
    assert len(found) == _HARMED[name][1]
    lines = asked(INCIDENTS[name], "get", "requests", "--limit", "1000").stdout.splitlines()
    rows = [line.split() for line in lines if any(each["requestId"] in line for each in found)]
    assert {(row[3], row[-1]) for row in rows} == {("clean-up", "clean-up")}
    assert not any("abort" in line for line in lines)
