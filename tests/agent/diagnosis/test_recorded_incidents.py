"""Incidents that were caused on real engines: the diagnosis of each recording names the right cause first."""

from __future__ import annotations

import json
import re
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.bundle import FORMAT, unpack_bundle
from penstock.agent.journal import Journal

from tests.support.incidents.asking import asked
from tests.support.incidents.films import RECORDED as FILMED
from tests.support.incidents.table import INCIDENTS, RECORDED

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.incidents.table import Incident

each_incident = pytest.mark.parametrize("incident", INCIDENTS.values(), ids=INCIDENTS)
_VERDICTS = {0: "nothing_wrong", 1: "causes", 3: "cannot_tell"}
_LARGEST = 100_000
# Directories of the machine that recorded, and addresses that are not its own.
_PATHS = re.compile(rb"/(?:work|tmp|home|root|usr|var/tmp)/")
_ADDRESSES = re.compile(rb"\b\d{1,3}(?:\.\d{1,3}){3}(?=:\d)")
_LOOPBACK = b"127.0.0.1"


def _diagnosis(incident: Incident) -> tuple[int, dict[str, Any]]:
    ran = asked(incident, "diagnose", "--since", incident.window, "-o", "json")
    return ran.exit_code, json.loads(ran.stdout)


@each_incident
def test_the_right_cause_comes_first(incident: Incident) -> None:
    """With the exit code for scripts, and a sentence that names what a person needs."""
    code, document = _diagnosis(incident)
    assert code == incident.code
    first = (document.get("causes") or [{}])[0]
    assert first.get("kind", "") == incident.kind
    for word in incident.words:
        assert word in document["sentence"]


@pytest.mark.parametrize(
    "incident",
    [
        pytest.param(incident, id=name, marks=[pytest.mark.long] * (number > 0))
        for number, (name, incident) in enumerate(INCIDENTS.items())
    ],
)
def test_it_does_not_depend_on_the_day(incident: Incident, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the bundle is the present: years later the same is said."""
    before = _diagnosis(incident)
    monkeypatch.setattr("penstock.agent.ctl.moments.time.time", lambda: 4e9)
    assert _diagnosis(incident) == before


def test_all_recordings_are_in_the_table() -> None:
    """And no file is left of one that is not."""
    assert {path.stem for path in RECORDED.glob("*.bundle")} == set(INCIDENTS)


def test_what_is_well_and_what_is_unknown_are_recorded_too() -> None:
    """A diagnosis that always finds something is worth nothing."""
    assert {incident.code for incident in INCIDENTS.values()} == set(_VERDICTS)


@each_incident
def test_a_recording_is_small_and_says_its_format(incident: Incident) -> None:
    """A later reader refuses what it cannot read by that number."""
    assert incident.path.stat().st_size < _LARGEST
    with zipfile.ZipFile(incident.path) as archive:
        assert json.loads(archive.read("manifest.json"))["format"] <= FORMAT


@pytest.mark.parametrize(
    "bundle",
    [
        *RECORDED.glob("*.bundle"),
        *FILMED.glob("*/minute.bundle"),
        # They say more of the same machine.
        *(
            pytest.param(path, marks=pytest.mark.long)
            for path in FILMED.glob("*/*.bundle")
            if path.stem != "minute"
        ),
    ],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
async def test_a_recording_is_of_no_machine_in_particular(bundle: Path, tmp_path: Path) -> None:
    """No path, no address but the loopback one, no name of who recorded it, no prompt: not in a file and not in an entry."""
    manifest = unpack_bundle(bundle, tmp_path)
    parts = [(tmp_path / each.name).read_bytes() for each in manifest.files]
    assert {each.name for each in manifest.files} == {"state.json", "policy.db", "journal.db"}
    journal = Journal.open(tmp_path, limit=1 << 30, salvages=False)
    try:
        with journal.reader() as reader:
            parts += [batch.body for batch in reader.batches(0, limit=100_000)]
    finally:
        await journal.close()
    for part in parts:
        assert not _PATHS.search(part)
        assert set(_ADDRESSES.findall(part)) <= {_LOOPBACK}
        assert b"A penstock is the gate" not in part
        assert b"root@" not in part
