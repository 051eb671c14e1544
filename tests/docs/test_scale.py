"""``docs/scale.md`` says what ``benchmarks/scale.json`` holds."""

from __future__ import annotations

from benchmarks.harness.document import Results
from benchmarks.scale.__main__ import DOCUMENT, RESULTS
from benchmarks.scale.document import inserted
from benchmarks.scale.variables import VARIABLES


def test_the_document_is_that_of_the_results() -> None:
    """`python -m benchmarks.scale --write` writes it; what was measured was measured at all points of the command."""
    sections = Results.load(RESULTS).sections(tuple(VARIABLES))
    measured = {each.area: tuple(dict.fromkeys(int(row.group) for row in each.rows)) for each in sections}
    assert measured
    assert measured == {name: VARIABLES[name].points for name in measured}
    text = DOCUMENT.read_text()
    assert inserted(text, sections) == text
