"""Recorded incidents asked for by their moment: what the log tells leads as it does now, and what it does not tell is said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.incidents.asking import asked
from tests.support.incidents.table import INCIDENTS

if TYPE_CHECKING:
    from tests.support.incidents.table import Incident

# The others' are told by snapshots alone, which the log does not keep.
OF_THE_LOG = {
    "answers_suspect",
    "encoder_fails",
    "eplb_stalls",
    "healthy_peer_quarantined",
    "incompatible_peer",
    "late_reads",
    "leases_expire",
    "no_transfer_parameters",
    "peer_refuses",
    "peer_slow",
    "policy_fails_loads",
    "weights_differ",
}
TOLD = {name: incident for name, incident in INCIDENTS.items() if incident.kind in OF_THE_LOG}


@pytest.mark.parametrize("incident", TOLD.values(), ids=TOLD)
def test_the_log_tells_it_as_well(incident: Incident) -> None:
    """A moment before the bundle was taken, the same cause leads; that snapshots are missing is said."""
    ran = asked(incident, "diagnose", "--since", incident.window, "--at", "1ms", "-o", "json")
    document = json.loads(ran.stdout)
    assert (ran.exit_code, document["causes"][0]["kind"]) == (incident.code, incident.kind)
    assert any("the log keeps no snapshots" in each for each in document["missing"])


def test_the_first_line_says_as_of_when() -> None:
    """By the bundle's time, and what ended before is not told."""
    incident = next(iter(TOLD.values()))
    now = json.loads(asked(incident, "diagnose", "-o", "json").stdout)["at"]
    first = asked(incident, "diagnose", "--at", now).stdout.splitlines()[0]
    assert first.startswith(f"as of {now[:10]} {now[11:19]} UTC: ")
