"""The README's picture of the demo shows what the demo says, word for word (`tests/e2e/test_demo.py` plays it)."""

from __future__ import annotations

import re
import shlex

from penstock.agent.ctl.main import cli
from penstock.agent.metrics.catalogue import METRICS
from penstock.agent.traces.spans import semconv

from tests.docs.demo_picture import chosen, drawn, shown
from tests.support.samples.said import said


def test_headings_and_sentences_are_the_demos() -> None:
    """Each stands in the demo's source."""
    sentences = [line.removeprefix("━━━ ") for line in shown() if not line.startswith(("  ", "$ "))]
    assert len(sentences) > 4
    assert [line for line in sentences if not said(line)] == []


def test_commands_metrics_and_spans_exist() -> None:
    """A name that changes in the code changes in the picture."""
    text = "\n".join(shown())
    commands = [shlex.split(line)[2] for line in shown() if line.startswith("$ agentctl")]
    assert commands
    assert set(commands) <= set(cli.list_commands(None))  # type: ignore[arg-type]
    names = {name for metric in METRICS for name in (metric.name, *metric.samples)}
    assert set(re.findall(r"\bpenstock_\w+", text)) <= names
    spans = {value for name, value in vars(semconv).items() if name.isupper()}
    assert set(re.findall(r"─ ([\w.]+)", text)) <= spans


def test_what_is_drawn_can_be_read_back() -> None:
    """Steps without the first, commands without the ones that are left out, lines cut and escaped."""
    printed = (
        '[  3 s] agent: ready\n\n[ 41 s] ━━━ (a) Good\n  a\n\n[ 55 s] ━━━ (b) Bad & <so>\n[ 99 s] still waiting\nIt failed:\n  penstock_x_total{engine="0",peer="p"} 1\n'
        "$ agentctl get events\n  AGE   X\n$ agentctl explain r\n  Request r\n\n[101 s] ━━━ (c) Policy\nDone; no process.\n"
    )
    lines = chosen(printed)
    assert [line for line in lines if line] == [
        "━━━ (b) Bad & <so>",
        "It failed:",
        '  penstock_x_total{peer="p"} 1',
        "$ agentctl get events",
        "  AGE   X",
        "━━━ (c) Policy",
    ]
    assert "&lt;so&gt;" in drawn(lines)
