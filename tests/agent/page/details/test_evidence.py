"""The table of plots has every cause that the diagnosis knows, and only plots that the page has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from penstock.agent.diagnosis import rules
from penstock.agent.diagnosis.rules.held_blocks import _HOLDERS
from penstock.agent.diagnosis.rules.peer_kinds import _ENCODER_FAILS, _ENCODER_KINDS
from penstock.agent.diagnosis.rules.policies import _DECIDED
from penstock.agent.diagnosis.rules.stalls import _KINDS
from penstock.agent.page.details.detail import MinutesSection, PlotSection
from penstock.agent.page.details.engine import PLOT_TITLES
from penstock.agent.page.details.evidence import MINUTES, PLACES, evidence_section

ROOT = Path(__file__).parents[4]
RULES = Path(rules.__file__).parent
STATIC = ROOT / "agent" / "penstock" / "agent" / "page" / "static"
_KIND = re.compile(r"[a-z]+(_[a-z]+)*")


def kinds_of_the_rules() -> set[str]:
    """Return the kinds that the rules name where they make a cause, and those of the tables that they look into."""
    found = {*_KINDS, *_ENCODER_KINDS.values(), _ENCODER_FAILS}
    found |= {each[0] for each in (*_HOLDERS.values(), *_DECIDED.values())}
    for path in RULES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                makes = getattr(node.func, "id", "") in {"FoundCause", "PeerKind"}
                said = node.args[:1] if makes else []
                said = [*said, *(each.value for each in node.keywords if each.arg == "kind")]
                found |= {
                    each.value
                    for one in said
                    for each in ast.walk(one)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                }
    return found


def kinds_of_the_runbook() -> set[str]:
    """Return the kinds of the first column of its table of causes."""
    text = (ROOT / "docs" / "guides" / "runbook.md").read_text()
    table = text.partition("\n## Causes\n")[2].partition("\n## ")[0]
    return {
        kind
        for line in table.splitlines()
        if line.startswith("| `")
        for kind in re.findall(r"`([^`]+)`", line.split("|")[1])
    }


def test_every_cause_has_its_plot() -> None:
    """A new rule adds a line to the table."""
    kinds = kinds_of_the_rules()
    assert len(kinds) > 50
    assert all(_KIND.fullmatch(kind) for kind in kinds)
    assert set(PLACES) == kinds
    assert set(PLACES) == kinds_of_the_runbook()


def test_every_plot_is_one_of_the_page() -> None:
    """By its name in the scripts."""
    plots = set(re.findall(r'^    id: "(\w+)",$', (STATIC / "signals.js").read_text(), re.MULTILINE))
    assert set(PLOT_TITLES) == plots
    assert {place.plot for place in PLACES.values()} <= {MINUTES, *plots}


@pytest.mark.parametrize(
    ("kind", "engines", "peer", "section"),
    [
        ("peer_refuses", ["a/0"], "h:1", MinutesSection("Failures and deferrals", "a/0", "h:1")),
        ("peer_refuses", ["a/0", "b/0"], "h:1", MinutesSection("Failures and deferrals", "", "h:1")),
        ("of_a_newer_agent", [], "", MinutesSection("Failures and deferrals", "", "")),
        (
            "pinned_blocks",
            ["a/0"],
            "",
            PlotSection("KV blocks held, share of the cache of a/0", "held", "a/0"),
        ),
        ("no_capacity", [], "", PlotSection("Requests in the engine", "queue", "")),
        ("peer_slow", ["a/0", "b/0"], "h:1", PlotSection("Time to first token of a/0", "ttft", "a/0")),
    ],
)
def test_a_condition_is_seen_in_its_plot(
    kind: str, engines: list[str], peer: str, section: PlotSection | MinutesSection
) -> None:
    """Of its engine; of several, the minutes of all and the plot of the first."""
    found = evidence_section(kind, engines, peer)
    assert found.sentence
    assert (
        type(found)(**{name: getattr(found, name) for name in found.__slots__ if name != "sentence"})
        == section
    )
    assert ("the first of 2 engines" in found.sentence) == (kind == "peer_slow")
