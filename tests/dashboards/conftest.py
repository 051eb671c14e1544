"""What the dashboards and rules say, read once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

DASHBOARDS = Path(__file__).parents[2] / "dashboards"

# What Grafana puts in before Prometheus sees the expression.
_VARIABLES = {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h"}


def rules_of(file: Path) -> list[dict[str, Any]]:
    """Return the rules of a file."""
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


@pytest.fixture(scope="session")
def prometheus_directory() -> Path:
    """Return where rules and alerts are."""
    return DASHBOARDS / "prometheus"


@pytest.fixture(scope="session")
def alerts(prometheus_directory: Path) -> list[dict[str, Any]]:
    """Return all alerts."""
    return rules_of(prometheus_directory / "alerts.yml")


@pytest.fixture(scope="session")
def recordings(prometheus_directory: Path) -> list[dict[str, Any]]:
    """Return all recording rules."""
    return rules_of(prometheus_directory / "rules.yml")


@pytest.fixture(scope="session")
def dashboard() -> dict[str, Any]:
    """Return the Grafana dashboard."""
    text = (DASHBOARDS / "grafana" / "penstock.json").read_text()
    return dict(json.loads(text))


@pytest.fixture(scope="session")
def queries(dashboard: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return (where, expression, legend) of all panels and annotations, variables filled in."""
    found = [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]
    found += [(item["name"], item["expr"], item["textFormat"]) for item in dashboard["annotations"]["list"]]
    return [(where, _filled(expression), legend) for where, expression, legend in found]


def _filled(expression: str) -> str:
    for variable, value in _VARIABLES.items():
        expression = expression.replace(variable, value)
    return re.sub(r'"\$\w+"', '".*"', expression)
