"""The table of what users searched for names causes that diagnose has, and recordings that exist."""

from __future__ import annotations

import ast
import re

from tests.support.incidents.table import INCIDENTS
from tests.support.samples.stage import ROOT

_TABLE = ROOT / "docs" / "reference" / "field-incidents.md"
_GUIDE = ROOT / "docs" / "guides" / "runbook.md"
_WALK = ROOT / "docs" / "guides" / "incidents.md"
_RULES = ROOT / "agent" / "penstock" / "agent" / "diagnosis" / "rules"
_TESTS = ROOT / "tests" / "agent" / "diagnosis"
_WORD = re.compile(r"`([a-z_]+)`")
_NUMBERS = {"two": 2, "three": 3, "four": 4}
# Words of policies and of metrics' labels, which are no kinds.
_OTHERS = {"integrity", "host", "disk"}


def _rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if re.match(r"\| (?:\d+|`)", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _kinds() -> set[str]:
    """Return the kinds that the runbook explains."""
    section = _GUIDE.read_text().partition("| kind | what it is |")[2].partition("\n\n")[0]
    return {kind for row in _rows(section) for kind in _WORD.findall(row[0])}


def test_every_thread_has_a_row() -> None:
    """In the order of their numbers."""
    assert [row[0] for row in _rows(_TABLE.read_text())] == [str(number) for number in range(1, 36)]


def test_the_kinds_are_explained_and_said() -> None:
    """Each kind of the table, and of the recordings, has a line in the guide; each of the guide stands in a rule."""
    named = {kind for row in _rows(_TABLE.read_text()) for kind in _WORD.findall(row[3])} - _OTHERS
    recorded = {incident.kind for incident in INCIDENTS.values()} - {""}
    assert (named | recorded) - _kinds() == set()
    rules = "".join(path.read_text() for path in _RULES.glob("*.py"))
    assert {kind for kind in _kinds() if f'"{kind}"' not in rules} == set()


def test_each_kind_of_the_rules_is_in_the_runbook() -> None:
    """The first argument of each cause, where it is a word."""
    found: set[str] = set()
    for path in _RULES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"FoundCause", "_Kind"}:
                first = [*node.args, *(each.value for each in node.keywords if each.arg == "kind")][:1]
                found |= {str(each.value) for each in first if isinstance(each, ast.Constant)}
    assert len(found) > 20
    assert found - _kinds() == set()


def test_each_kind_has_a_test_of_its_rule() -> None:
    """Among the tests of the judge."""
    tests = "".join(path.read_text() for path in _TESTS.rglob("*.py"))
    assert {kind for kind in _kinds() if f'"{kind}"' not in tests} == set()


def test_the_recordings_exist() -> None:
    """By the names of the bundles."""
    named = {name for row in _rows(_TABLE.read_text()) for name in re.findall(r"`([a-z-]+)`", row[4])}
    assert named <= set(INCIDENTS)


def test_the_guide_walks_through_each_recording() -> None:
    """With the diagnosis of it, over the age of its fault."""
    typed = re.findall(
        r"^\$ agentctl diagnose --since (\w+) --bundle ([a-z-]+)\.bundle$", _WALK.read_text(), re.MULTILINE
    )
    assert {name: since for since, name in typed} == {
        name: incident.window for name, incident in INCIDENTS.items()
    }


def test_the_sentence_counts_the_rows() -> None:
    """What is not answered is said, and not counted."""
    text = _TABLE.read_text()
    rows = _rows(text)
    silent = [row for row in rows if row[3].startswith("not answered")]
    elsewhere = [row for row in rows if row[3].startswith(("a question", "a defect"))]
    sentence = re.search(r"`diagnose` answers (\d+);\s+(\w+) are .*?, and (\w+) are\s+not answered", text)
    assert sentence is not None
    answered = len(rows) - len(silent) - len(elsewhere)
    assert int(sentence[1]) == answered >= 25
    assert (_NUMBERS[sentence[2]], _NUMBERS[sentence[3]]) == (len(elsewhere), len(silent))
