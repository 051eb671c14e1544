"""The guide for the first hour repeats numbers of other documents, and names of manifests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from penstock.agent.policy.manifest import parse_manifest
from penstock.proto.version import __version__

_ROOT = Path(__file__).parents[2]
_GUIDE = (_ROOT / "docs/guides/install.md").read_text()
_FOLDED = " ".join(_GUIDE.split())


def _document(name: str) -> str:
    return (_ROOT / name).read_text()


def _section(text: str, title: str) -> str:
    """Return what stands below a heading, to the next of any level."""
    return re.split(r"^#+ ", text.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def _rows(text: str) -> list[list[str]]:
    """Return the rows of the tables of a text whose first cell is a number or "none"."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    return [row for row in rows if re.fullmatch(r"[\d,]+|none", row[0])]


def test_what_an_agent_costs_is_what_was_measured() -> None:
    """CPU and memory by rate and processes, of the tables of docs/scale.md."""
    scale = _document("docs/scale.md")
    sources = {row[0]: (f"{row[5]} %", f"{row[4]} MiB") for row in _rows(_section(scale, "Sources"))}
    events = {row[0]: (f"{row[4]} %", f"{row[3]} MiB") for row in _rows(_section(scale, "Events"))}
    rows = [row for row in _rows(_section(_GUIDE, "Sizing")) if len(row) == 4]
    assert len(rows) == 7
    for rate, processes, cpu, memory in rows:
        if rate == "none":
            assert f"An idle agent takes {memory}" in scale
        elif processes == "64":
            assert (cpu, memory) == events[rate]
        else:
            assert (rate, cpu, memory) == ("2,000", *sources[processes])


def test_other_numbers_are_those_of_their_documents() -> None:
    """The log by rate, label sets, the trace export, a later benchmark of memory, what an engine pays."""
    kept = {
        row[0]: row[1:]
        for row in _rows(_section(_document("docs/guides/state.md"), "How much disk, and for how long"))
    }
    (told,) = re.findall(r"At (\S+) entries/s \((\S+) requests/s\) 1 GiB lasts (.+?) to (.+?)\. ", _FOLDED)
    assert list(told[1:]) == kept[told[0]]
    sets = {row[0]: row for row in _rows(_section(_document("docs/scale.md"), "Label sets"))}
    assert f"With 10,000 label sets (peers times metrics), a scrape takes {sets['10,000'][3]} ms" in _FOLDED
    (export,) = re.findall(r"the trace export (\d+) %", " ".join(_document("docs/profiles.md").split()))
    assert f"The trace export takes {export} % of a core" in _FOLDED
    readme = _document("README.md")
    (memory,) = re.findall(r"the agent at 2,000 events/s: (\d+ MiB)", readme)
    for number in (
        memory,
        "0.2 % of a core when idle",
        "20 to 25 µs a request",
        "80 to 120 µs one with a remote",
    ):
        assert number in readme
        assert number in _FOLDED


def test_what_is_shown_is_valid() -> None:
    """The policy parses; images have the project's version."""
    blocks = [
        text for language, text in re.findall(r"```(\w+)\n(.*?)```", _GUIDE, re.DOTALL) if language == "yaml"
    ]
    documents = [yaml.safe_load(text) for text in blocks]
    (policy,) = [loaded for loaded in documents if "kind" in loaded]
    assert parse_manifest(json.dumps(policy)).name == "decode-default"
    assert set(re.findall(r"newTag: (\d\S*?)}", _GUIDE)) == {__version__}


def test_each_step_says_how_to_check_it() -> None:
    """From the first pod to the removal."""
    steps = ["Metrics, traces, the first policy", "The fleet", "Security", "Upgrade", "Removal"]
    assert [
        step for step in steps if not re.search(r"\bCheck: ", " ".join(_section(_GUIDE, step).split()))
    ] == []
    assert "**2. Check.**" in _section(_GUIDE, "One pod")
