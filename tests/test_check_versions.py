"""``make check-versions``: which versions it takes, and the table that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.script import load_script

ROOT = Path(__file__).parents[1]


script: Any = load_script("check_versions")

LISTED = """\
vllm (0.33.0)
Available versions: 0.33.0, 0.32.1, 0.32.0, 0.30.0.post2, 0.30.0, 0.29.0, 0.8.5.post1
  INSTALLED: 0.32.0
"""


def survey(version: str, **hooks: list[tuple[str, ...]]) -> dict[str, Any]:
    """Return what the check prints for a version: by hook a verdict, a reason and what is lost for each of its classes."""
    return {
        "versions": {"vLLM": version},
        "hooks": [
            {
                "hook": hook,
                "verdict": verdict,
                "reason": reason,
                "without": [{"part": "p", "lost": lost, "reason": "gone"} for lost in parts],
            }
            for hook, rows in hooks.items()
            for verdict, reason, *parts in rows
        ],
    }


FITS = ("fits", "")
OLD = survey(
    "0.31.0",
    scheduler=[("left out", "Scheduler.f is missing"), ("left out", "AsyncScheduler.f is missing")],
    nixl=[FITS, ("left out", "Push.g has no parameter stream (it has self, (a, b))")],
    mooncake=[("not used", "this vLLM has no such connector")],
    client_error=[("fits", "", "the type of an error")],
)
OLDER = {**OLD, "versions": {"vLLM": "0.30.0"}}
NEW = survey(
    "0.32.0+cpu",
    scheduler=[FITS, FITS, ("not used", "no such class")],
    nixl=[FITS, FITS],
    mooncake=[FITS],
    client_error=[FITS],
)
DOCUMENT = f"""\
Before.

{script.BEGIN}

| hook | what is missing without it | 0.31 |
|---|---|---|
| `scheduler` | policies, waits | no |
| `nixl` | transfers; see `a` | yes |
| `mooncake` | why | yes |
| `client_error` | the cause | yes |
| `gone` | a hook of former times | yes |

{script.END}

After.
"""
WRITTEN = f"""\
Before.

{script.BEGIN}

| hook | what is missing without it | 0.30 | 0.31 | 0.32 |
|---|---|---|---|---|
| `scheduler` | policies, waits | no | no | yes |
| `nixl` | transfers; see `a` | partly | partly | yes |
| `mooncake` | why | not used | not used | yes |
| `client_error` | the cause | less | less | yes |

Releases compared: 0.30.0, 0.31.0, 0.32.0+cpu.

- 0.30, 0.31: `nixl` left out (Push.g has no parameter stream).
- 0.30, 0.31: `scheduler` left out (Scheduler.f is missing).
- 0.30, 0.31: `client_error` works without: the type of an error.
- 0.29.0 could not be compared: no.

{script.END}

After.
"""


def test_the_newest_release_of_each_minor_version() -> None:
    """Of the last eight, and back to what a distribution pins, the oldest first; what is installed is none."""
    found = ["0.29.0", "0.30.0.post2", "0.32.1", "0.33.0"]
    assert script.newest_of_each_minor(LISTED) == found
    assert script.newest_of_each_minor(LISTED.replace("0.33.0", "0.37.0"), []) == [*found[1:-1], "0.37.0"]
    assert script.newest_of_each_minor(LISTED.replace("0.33.0", "0.37.0"), [(0, 29)]) == [
        *found[:-1],
        "0.37.0",
    ]
    assert script.newest_of_each_minor("ERROR: no such package") == []


def test_the_supported_range_is_written_where_it_is_said() -> None:
    """Other numbers stay."""
    text = "needs vLLM 0.25 to 0.31, not vLLM 0.33 alone"
    assert script.with_range(text, "0.26", "0.33") == "needs vLLM 0.26 to 0.33, not vLLM 0.33 alone"


def test_the_table() -> None:
    """What a hook is for stays as it is written; everything else is what was found, and a second run changes nothing."""
    written = script.rewritten(DOCUMENT, [OLDER, OLD, NEW], ["0.29.0 could not be compared: no."])
    assert written == WRITTEN
    assert script.rewritten(written, [OLDER, OLD, NEW], ["0.29.0 could not be compared: no."]) == WRITTEN


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("| hook |", "the document lacks"),
        (DOCUMENT.replace("| `nixl` ", "| `mixl` "), "add a row for nixl to the table"),
    ],
)
def test_what_has_to_be_written_by_hand(document: str, sentence: str) -> None:
    """The marks, and the row of a new hook."""
    with pytest.raises(script.CheckError, match=sentence):
        script.rewritten(document, [NEW], [])


def test_the_document_has_the_marks() -> None:
    """The table of docs/compatibility.md is one that the command can write."""
    document = (ROOT / "docs" / "compatibility.md").read_text()
    hooks: dict[str, list[tuple[str, ...]]] = {
        cells[0].strip("`"): [FITS]
        for cells in script._rows(document.partition(script.BEGIN)[2].partition(script.END)[0])
    }
    assert "scheduler" in hooks
    assert "| 9.9 |" in script.rewritten(document, [survey("9.9.0", **hooks)], [])


def test_a_check_that_gives_no_answer(tmp_path: Path) -> None:
    """The last line of what it says is the reason."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2\necho 'no vLLM here' >&2\nexit 2\n")
    python.chmod(0o755)
    with pytest.raises(script.CheckError, match="the check fails: no vLLM here"):
        script.survey_of(python)
