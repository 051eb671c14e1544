"""Records of decisions: each has a number and a place in the index, is short, and names no file of the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "docs/decisions"
_WORDS = 500
_RECORDS = sorted(path for path in _FOLDER.glob("*.md") if path.name != "README.md")


def _prose(record: Path) -> str:
    return "\n".join(line for line in record.read_text().splitlines() if not line.startswith("|"))


def test_the_index_has_each_record_by_number_and_title() -> None:
    """The number is in the file's name, in its title and in the index, and no two records share one."""
    numbers = [record.name[:4] for record in _RECORDS]
    assert len(set(numbers)) == len(numbers)
    rows = []
    for record in _RECORDS:
        number, title = record.read_text().splitlines()[0].removeprefix("# ").split(". ", 1)
        assert record.name.startswith(f"{int(number):04}-")
        rows.append(f"| [{int(number):04}]({record.name}) | {title} |")
    index = (_FOLDER / "README.md").read_text().splitlines()
    assert [line for line in index if line.startswith("| [")] == rows


@pytest.mark.parametrize("record", _RECORDS, ids=lambda record: record.name[:4])
def test_a_record_is_short_and_names_no_file(record: Path) -> None:
    """Tables are not counted. Files move; what a record says of an idea or a package stays true."""
    prose = _prose(record)
    assert len(prose.split()) <= _WORDS
    named = re.findall(r"`([\w/.-]+\.(?:py|js|sh|c))`", prose)
    ours = {
        path.name
        for root in ("agent", "instrumentation", "proto", "scripts", "benchmarks", "tests", "demo")
        for path in (_ROOT / root).rglob("*.*")
    }
    assert [name for name in named if Path(name).name in ours] == []
