"""The shipped rules, and those of them that can say something of given series: to evaluate all is most of promtool's work."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.support.prometheus.promql import names

if TYPE_CHECKING:
    from collections.abc import Iterable

RULES = Path(__file__).parents[3] / "dashboards" / "prometheus"
FILES = ("rules.yml", "alerts.yml")
# Their result is something where there is nothing.
_FROM_NOTHING = re.compile(r"\b(absent|absent_over_time|vector)\s*\(")


def metric_of(series: str) -> str:
    """Return the name of ``name{labels}``."""
    return series.partition("{")[0]


def write_rules_about(series: Iterable[str], directory: Path) -> list[str]:
    """Write the shipped rules to *directory*, without those that have no result whatever values the *series* have.

    These name none of the series, and no recording rule that does. Returns the files' paths.
    """
    groups = {file: _groups(file) for file in FILES}
    rules = [rule for file in groups.values() for group in file for rule in group["rules"]]
    there = {metric_of(each) for each in series}
    kept: list[dict[str, Any]] = []
    while more := [rule for rule in rules if rule not in kept and _has_result(rule["expr"], there)]:
        kept += more
        there |= {rule["record"] for rule in more if "record" in rule}
    paths = []
    for file, of_file in groups.items():
        content = [{**group, "rules": [rule for rule in group["rules"] if rule in kept]} for group in of_file]
        path = directory / file
        path.write_text(json.dumps({"groups": content}))
        paths.append(str(path))
    return paths


@cache
def _groups(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((RULES / file).read_text())["groups"])


def _has_result(expression: str, there: set[str]) -> bool:
    return bool(names(expression) & there or _FROM_NOTHING.search(expression))
