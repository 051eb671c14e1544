"""Rules and alerts: promtool's word, and that every alert is tested, quiet when nothing is wrong, and leads somewhere."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from penstock.agent.ctl.main import cli

from tests.support.prometheus.promql import metrics
from tests.support.prometheus.rules import write_rules_about
from tests.support.prometheus.server import promtool

TEMPLATE = re.compile(r"\{\{.*?\}\}")
_PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
RUNBOOK = _PROJECT["urls"]["Runbook"] + "#"
_FILES = sorted(
    file.stem for file in (Path(__file__).parents[2] / "dashboards" / "prometheus" / "tests").glob("*.yml")
)
# Of these users lose requests, or get wrong answers, now; everything else can wait until the morning.
PAGES = {
    "PenstockRequestsFailing",
    "PenstockFailuresAfterPolicyChange",
    "PenstockTransferStuck",
    "PenstockLateReads",
    "PenstockSuspectAnswers",
    "PenstockCorruptTransfers",
    "PenstockEngineDark",
    "PenstockWeightsDiffer",
    "PenstockEngineIdShared",
}


def test_promtool_accepts_the_rules(prometheus_directory: Path) -> None:
    """Syntax of rules and alerts."""
    result = promtool("check", "rules", "rules.yml", "alerts.yml", cwd=prometheus_directory)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    # test_counting.py has a burst of each alert.
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name == "burst")) for name in _FILES],
)
def test_promtool_runs_the_unit_tests(name: str, prometheus_directory: Path, tmp_path: Path) -> None:
    """Each alert fires when it should, stays quiet when it should, with these words; each test has the rules about its series."""
    files = []
    content = yaml.safe_load((prometheus_directory / "tests" / f"{name}.yml").read_text())
    for number, test in enumerate(content["tests"]):
        directory = tmp_path / str(number)
        directory.mkdir()
        rules = write_rules_about((each["series"] for each in test["input_series"]), directory)
        files.append(directory / "test.yml")
        files[-1].write_text(json.dumps({**content, "rule_files": rules, "tests": [test]}))
    assert files
    result = promtool("test", "rules", *map(str, files))
    assert result.returncode == 0, result.stdout


@pytest.mark.long
def test_promtool_runs_the_unit_tests_as_they_are(prometheus_directory: Path) -> None:
    """The same with all rules for each test, as who runs them by hand."""
    files = sorted(path.name for path in (prometheus_directory / "tests").glob("*.yml"))
    result = promtool("test", "rules", *files, cwd=prometheus_directory / "tests")
    assert result.returncode == 0, result.stdout


def test_rules_that_are_left_out_have_no_result(tmp_path: Path) -> None:
    """What names a series, or a recording of it, however far, is kept; what names none is not."""
    written = write_rules_about(['penstock_transfer_duration_seconds_sum{peer="a"}', "up"], tmp_path)
    groups = [group for file in written for group in yaml.safe_load(Path(file).read_text())["groups"]]
    kept = {rule.get("record", rule.get("alert")) for group in groups for rule in group["rules"]}
    assert kept >= {
        "penstock_transfer_duration_seconds_sum:from_zero",
        "namespace_job_channel:penstock_transfer_duration_seconds:median_of_peers5m",
        "PenstockPeerSlow",
        "PenstockAgentDown",
    }
    assert not kept & {"penstock_transfers_total:from_zero", "PenstockEplbFailed"}


def test_every_alert_is_tested_firing_and_quiet(
    prometheus_directory: Path, alerts: list[dict[str, Any]]
) -> None:
    """Every alert fires in a test."""
    firing: set[str] = set()
    quiet: set[str] = set()
    for file in (prometheus_directory / "tests").glob("*.yml"):
        for test in yaml.safe_load(file.read_text())["tests"]:
            for case in test.get("alert_rule_test", []):
                (firing if case["exp_alerts"] else quiet).add(case["alertname"])
    assert firing == {rule["alert"] for rule in alerts}
    # Of missing engines the quiet case comes after they are back.
    assert quiet == firing


def test_alerts_carry_what_people_need(alerts: list[dict[str, Any]]) -> None:
    """A summary, a description, a time that it must last, a severity by its consequence, the next command, a runbook."""
    for rule in alerts:
        assert set(rule["annotations"]) == {"summary", "description", "run", "runbook_url"}, rule["alert"]
        assert rule["labels"]["severity"] == ("critical" if rule["alert"] in PAGES else "warning")
        assert re.fullmatch(r"[1-9]\d*[mh]", rule["for"]), rule["alert"]
        assert rule["alert"].startswith("Penstock")
        assert not rule["annotations"]["summary"].endswith(".")


def test_the_runbook_has_a_section_for_each_alert_and_no_other(
    prometheus_directory: Path, alerts: list[dict[str, Any]]
) -> None:
    """The anchor of a URL is that of a heading, and each section says the same five things, what is not meant first."""
    text = (prometheus_directory.parents[1] / "docs" / "guides" / "runbook.md").read_text()
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == {rule["alert"] for rule in alerts}
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == RUNBOOK + rule["alert"].lower()
        named = re.findall(r"^- \*\*(.+?)\.\*\*", sections[rule["alert"]], re.MULTILINE)
        assert named == ["Not meant", "Means", "Run first", "Change", "Ignore"], rule["alert"]
        command = TEMPLATE.sub("", rule["annotations"]["run"]).split()[:3]
        assert " ".join(command) in " ".join(sections[rule["alert"]].split()), rule["alert"]


def test_the_runbook_tells_the_severity_of_each_alert(
    prometheus_directory: Path, alerts: list[dict[str, Any]]
) -> None:
    """The alerts that page stand in a part of their own."""
    text = (prometheus_directory.parents[1] / "docs" / "guides" / "runbook.md").read_text()
    page, _, rest = text.partition("\n## Warnings")
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == PAGES
    assert set(re.findall(r"^### (\w+)$", rest, re.MULTILINE)) == {rule["alert"] for rule in alerts} - PAGES


def test_fleets_in_which_nothing_is_wrong_have_what_alerts_look_at(
    prometheus_directory: Path, alerts: list[dict[str, Any]], recordings: list[dict[str, Any]]
) -> None:
    """No alert is quiet there only because its metric is not: an idle fleet, a restarted one, an engine that was stopped."""
    recorded = {rule["record"]: metrics(rule["expr"]) for rule in recordings}
    used: set[str] = set()
    found = set().union(*(metrics(rule["expr"]) for rule in alerts))
    while found - used:
        used |= found
        found = set().union(*(recorded.get(name, set()) for name in used))
    wanted = used - set(recorded)
    tests = yaml.safe_load((prometheus_directory / "tests" / "quiet.yml").read_text())["tests"]
    assert [test["name"].partition(",")[0] for test in tests] == ["idle", "restarted", "stopped"]
    for test in tests:
        given = {series["series"].partition("{")[0] for series in test["input_series"]}
        assert wanted - given == set(), test["name"]
        (check,) = test["promql_expr_test"]
        assert check["expr"].startswith('count_over_time(ALERTS{alertstate="firing"}[')
        assert check["exp_samples"] == []


def test_the_commands_of_alerts_exist(alerts: list[dict[str, Any]]) -> None:
    """What an alert says to run is a command of agentctl, with arguments and options that it takes."""
    for rule in alerts:
        program, *arguments = shlex.split(TEMPLATE.sub("x", rule["annotations"]["run"]))
        assert program == "agentctl"
        command: click.Command | None = cli
        context = click.Context(cli, info_name=program)
        while isinstance(command, click.Group):
            name = arguments.pop(0)
            command = command.get_command(context, name)
            assert command is not None, f"{rule['alert']}: agentctl has no {name}"
            context = click.Context(command, parent=context, info_name=name)
        assert command is not None
        assert command.make_context(name, arguments, parent=context.parent).params
