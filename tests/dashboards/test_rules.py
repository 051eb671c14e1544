"""Rules and alerts: promtool's word, and that every alert is tested and leads somewhere."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import click
import yaml
from penstock.agent.ctl.main import cli

from tests.support.prometheus.server import promtool

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE = re.compile(r"\{\{.*?\}\}")


def test_promtool_accepts_the_rules(prometheus_directory: Path) -> None:
    """Syntax of rules and alerts."""
    result = promtool("check", "rules", "rules.yml", "alerts.yml", cwd=prometheus_directory)
    assert result.returncode == 0, result.stdout


def test_promtool_runs_the_unit_tests(prometheus_directory: Path) -> None:
    """Each alert fires when it should, stays quiet when it should, with these words."""
    files = sorted(path.name for path in (prometheus_directory / "tests").glob("*.yml"))
    assert files
    result = promtool("test", "rules", *files, cwd=prometheus_directory / "tests")
    assert result.returncode == 0, result.stdout


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
    """A summary, a description, a severity and the next command."""
    for rule in alerts:
        assert set(rule["annotations"]) == {"summary", "description", "run"}, rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule["alert"]
        assert rule["alert"].startswith("Penstock")
        assert not rule["annotations"]["summary"].endswith(".")


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
