"""Documents are read in terminals and in diffs: no line of prose is longer than 100 characters."""

from __future__ import annotations

import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_LIMIT = 100


def _too_long(document: Path) -> list[str]:
    """Return the places of lines that could be shorter: no tables, pictures, examples, or words without a break."""
    found, fenced = [], False
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        shown = fenced or line.startswith(("    ", "|", "![", "#"))
        if len(line) > _LIMIT and not shown and " " in line.strip():
            found.append(f"{document.relative_to(_ROOT)}:{number}: {len(line)}")
    return found


def test_no_line_is_too_long() -> None:
    """The same limit for all documents under version control."""
    listed = subprocess.run(
        ["git", "-C", str(_ROOT), "ls-files", "*.md"], capture_output=True, text=True, check=True
    )
    documents = [_ROOT / name for name in listed.stdout.splitlines()]
    assert documents
    assert [place for document in documents if document.exists() for place in _too_long(document)] == []
