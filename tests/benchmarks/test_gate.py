"""Counts beside the stored ones: what is refused, what is stored, and that a slower emit is seen."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from benchmarks.gate import __main__ as command
from benchmarks.gate import counting
from benchmarks.gate.counting import ROOT, GateError, count, processor
from benchmarks.gate.jobs import JOBS
from benchmarks.gate.stored import TOLERANCE, Stored, Verdict, load, save, updated

HERE = "This one, family 6 model 1"
KNOWN = Stored(1_000_000, {"Another, family 25 model 1": "2026-11-28"})


@pytest.mark.parametrize(
    ("found", "worse", "better"),
    [
        (1_000_000, False, False),
        (1_020_000, False, False),
        (1_020_001, True, False),
        (980_000, False, False),
        (979_999, False, True),
    ],
)
def test_more_than_the_tolerance_is_refused(found, worse, better):
    """Two per cent more of emit; as much less only asks for an update."""
    verdict = Verdict("emit", 1_000_000, found)
    assert (verdict.worse, verdict.better) == (worse, better)


def test_every_gate_has_a_tolerance():
    """The table in the README says the same."""
    assert TOLERANCE.keys() == JOBS.keys()
    told = (ROOT / "benchmarks" / "README.md").read_text()
    for gate, percent in TOLERANCE.items():
        assert re.search(rf"^\| `{gate}` \|.*\| \+{percent:g} % \|$", told, re.MULTILINE)


def test_a_count_that_is_the_same_has_one_more_processor():
    """The stored one stays, so that it does not drift; the first day on a processor does, too."""
    once = updated({"emit": KNOWN}, {"emit": 1_004_000}, HERE, "2026-12-01")
    assert once == {"emit": Stored(1_000_000, {**KNOWN.run_on, HERE: "2026-12-01"})}
    assert updated(once, {"emit": 1_004_000}, HERE, "2026-12-02") == once


def test_another_count_was_run_on_this_processor_only():
    """What others have counted was another code; gates that were not counted stay."""
    after = updated({"emit": KNOWN, "scrape": KNOWN}, {"emit": 1_011_000}, HERE, "2026-12-01")
    assert after == {"emit": Stored(1_011_000, {HERE: "2026-12-01"}), "scrape": KNOWN}


def test_the_store_comes_back_from_its_file(tmp_path):
    """Before the first update there is nothing."""
    path = tmp_path / "instructions.json"
    assert load(path) == {}
    save(path, {"CPython": {"emit": KNOWN}})
    assert load(path) == {"CPython": {"emit": KNOWN}}


def test_stored_counts_are_of_all_gates_and_say_where_they_were_run():
    """By the name of each build."""
    store = json.loads(command.STORE.read_text())
    assert store
    for gates in store.values():
        assert gates.keys() == JOBS.keys()
        assert all(each["run_on"] for each in gates.values())


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """Count nothing: these are the counts of this tree, and those of another code."""
    found = {"here": {"emit": 1_000_000}, "there": {"emit": 1_000_000}}

    def answer(_jobs, code=None):
        if isinstance(found["there"], Exception) and code is not None:
            raise found["there"]
        return found["here"] if code is None else found["there"]

    monkeypatch.setattr(command, "count", answer)
    monkeypatch.setattr(command, "extract", lambda *_: None)
    monkeypatch.setattr(command, "build_name", lambda: "CPython")
    monkeypatch.setattr(command, "processor", lambda: HERE)
    monkeypatch.setattr(command, "STORE", tmp_path / "instructions.json")
    return found


def test_a_refusal_names_gate_counts_and_what_to_do(counted, capsys):
    """And the processor that the stored count was not yet run on is named where it passes."""
    save(command.STORE, {"CPython": {"emit": KNOWN}})
    assert command.gate(["emit"], update=False, base="") == 0
    assert f"Not yet noted as run on {HERE}: emit" in capsys.readouterr().out
    counted["here"] = {"emit": 1_100_000}
    assert command.gate(["emit"], update=False, base="") == 1
    said = capsys.readouterr().out
    assert "emit: 1,100,000 instructions, +10.00 % of 1,000,000 (at most +2 %)" in said
    assert "REFUSED emit: 10.0 % more instructions than stored. If that is intended" in said
    assert command.gate(["emit"], update=True, base="") == 0
    assert command.gate(["emit"], update=False, base="") == 0


def test_fewer_instructions_ask_for_an_update(counted, capsys):
    """They pass."""
    save(command.STORE, {"CPython": {"emit": KNOWN}})
    counted["here"] = {"emit": 900_000}
    assert command.gate(["emit"], update=False, base="") == 0
    assert "emit: 10.0 % fewer instructions than stored. If that is intended" in capsys.readouterr().out


def test_another_build_is_compared_with_the_commit_before(counted, capsys):
    """By the same jobs in the same run; where those do not run on its code, nothing is judged, and that is said."""
    counted["there"] = {"emit": 900_000}
    assert command.gate(["emit"], update=False, base="") == 1
    said = capsys.readouterr().out
    assert "No counts are stored for CPython" in said
    assert "REFUSED emit: 11.1 % more instructions than at HEAD^" in said
    counted["there"] = GateError("emit ended with 1")
    assert command.gate(["emit"], update=False, base="") == 0
    assert "Not judged beside HEAD^: emit ended with 1" in capsys.readouterr().out


def test_a_job_that_ends_with_an_error_is_told_with_its_last_words(monkeypatch, tmp_path):
    """Not counted is not passed."""
    monkeypatch.setattr(counting, "_CALLGRIND", ("sh", "-c", "echo first; echo no such thing; exit 3"))
    with pytest.raises(GateError, match=r"emit ended with 3:\nfirst\nno such thing"):
        counting._count(tmp_path, tmp_path, [], "emit")


def test_the_processor_has_its_family():
    """A cloud's "AMD EPYC" stands for several."""
    assert "family" in processor()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_a_slower_emit_is_refused(tmp_path):
    """One more call for each sample is more than two per cent of emit; the same code on another path is the same."""
    for part in counting.PRODUCT:
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    here, same = count(["emit"]), count(["emit"], tmp_path)
    assert Verdict("emit", here["emit"], same["emit"]).same
    path = tmp_path / "instrumentation" / "penstock" / "instrumentation" / "telemetry" / "emitter.py"
    before = path.read_text()
    path.write_text(
        before.replace("queue = self.transfers\n", "queue = self.transfers\n        len(queue)\n", 1)
    )
    assert path.read_text() != before
    slow = count(["emit"], tmp_path)
    assert Verdict("emit", here["emit"], slow["emit"]).worse
