"""An alert: two engines whose clocks drift apart, by which vLLM ends leases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.recipes.edits import Edit, Recipe

_NAME = "PenstockPeerClockDrifts"
_METRIC = "penstock_peer_clock_offset_seconds"
_URL = f"https://github.com/penstock/penstock/blob/main/docs/guides/runbook.md#{_NAME.lower()}"
_SERIES = f'{_METRIC}{{job="decode",instance="d-0:9464",engine="0",peer="p-1:5600"}}'
_TESTS = "dashboards/prometheus/tests"
_ALERTS = "dashboards/prometheus/alerts.yml"
_RUNBOOK = "docs/guides/runbook.md"
_HAS_A_SECTION = "tests/dashboards/test_rules.py::test_the_runbook_has_a_section_for_each_alert_and_no_other"
_RULE = f"""\
      # Two seconds are a tenth of the shortest lease that anybody uses.
      - alert: {_NAME}
        expr: abs(delta({_METRIC}[10m])) > 2
        for: 5m
        labels:
          severity: warning
        annotations:
          summary: The clock of {{{{ $labels.peer }}}} drifts
          description: >-
            Between the clocks of {{{{ $labels.peer }}}} and of engine {{{{ $labels.engine }}}}, {{{{ $value | humanizeDuration }}}}
            were gained or lost in ten minutes.
          run: agentctl get peers
          runbook_url: {_URL}

"""
_TEST = f"""
  - name: a clock that drifts; one that only differs is no alarm
    interval: 30s
    input_series:
      - {{series: '{_SERIES}', values: "1000x20 1000+0.5x40 1020x60"}}
    alert_rule_test:
      - {{eval_time: 9m, alertname: {_NAME}, exp_alerts: []}}
      - eval_time: 25m
        alertname: {_NAME}
        exp_alerts:
          - exp_labels: {{severity: warning, job: decode, instance: "d-0:9464", engine: "0", peer: "p-1:5600"}}
            exp_annotations:
              summary: The clock of p-1:5600 drifts
              description: >-
                Between the clocks of p-1:5600 and of engine 0, 10s were gained or lost in ten minutes.
              run: agentctl get peers
              runbook_url: {_URL}
      - {{eval_time: 55m, alertname: {_NAME}, exp_alerts: []}}
"""
_SECTION = f"""\
### {_NAME}

- **Not meant.** Clocks that differ: each host counts from its own start.
- **Means.** The difference between two hosts' monotonic clocks changes, so leases end too early or
  too late.
- **Run first.** `agentctl get peers`.
- **Change.** Move the engine to another host.
- **Ignore.** While one of the hosts was suspended.

"""
_QUIET = f"      - {{series: '{_SERIES}', values: \"1x240\"}}\n"
_LINK = f"""\
      "links": [
        {{
          "title": "Runbook: {_NAME}",
          "url": "{_URL}",
          "targetBlank": true
        }}
      ],
"""


def _quiet(name: str) -> Edit:
    return Edit(
        f"{_TESTS}/quiet.yml", f"  - name: {name}\n    interval: 30s\n    input_series:\n", after=_QUIET
    )


RECIPE = Recipe(
    "How to add an alert",
    (
        Edit(_ALERTS, "      # Open and half_open alternate while a peer keeps failing", before=_RULE),
        Edit(f"{_TESTS}/peers.yml", "", after=_TEST),
        _quiet("idle, nothing has moved for two hours"),
        _quiet(
            "restarted, all pods are replaced, models load for a quarter of an hour, the first handshakes fail"
        ),
        _quiet("stopped, the only engine says goodbye and is forgotten after --retire-after"),
        Edit(_RUNBOOK, "### PenstockPeerQuarantined\n", before=_SECTION),
        Edit("dashboards/grafana/penstock.json", '      "title": "Handshakes",\n', after=_LINK),
    ),
    make=("observability",),
    checks=(
        "tests/dashboards/test_rules.py::test_promtool_accepts_the_rules",
        "tests/dashboards/test_rules.py::test_promtool_runs_the_unit_tests[peers]",
        "tests/dashboards/test_rules.py::test_promtool_runs_the_unit_tests[quiet]",
        "tests/dashboards/test_rules.py::test_every_alert_is_tested_firing_and_quiet",
        "tests/dashboards/test_rules.py::test_alerts_carry_what_people_need",
        _HAS_A_SECTION,
        "tests/dashboards/test_rules.py::test_the_runbook_tells_the_severity_of_each_alert",
        "tests/dashboards/test_rules.py::test_fleets_in_which_nothing_is_wrong_have_what_alerts_look_at",
        "tests/dashboards/test_rules.py::test_the_commands_of_alerts_exist",
        "tests/dashboards/test_dashboard.py::test_links_lead_somewhere",
        "tests/dashboards/test_names.py::test_only_labels_that_the_metric_has",
        "tests/dashboards/test_names.py::test_alert_texts_name_labels_that_exist",
        "tests/deploy/test_prometheus_operator.py::test_what_is_generated_is_up_to_date",
    ),
)


def prove() -> None:
    """Find it in the reference and in the PrometheusRule; without its section in the runbook a test fails."""
    reference = Path("docs/reference/metrics.md").read_text()
    assert f"| [{_NAME}](../guides/runbook.md#{_NAME.lower()}) | warning | 5m |" in reference
    groups = yaml.safe_load(Path("deploy/prometheus-operator/prometheusrule.yaml").read_text())["spec"][
        "groups"
    ]
    assert _NAME in {rule.get("alert") for group in groups for rule in group["rules"]}
    runbook = Path(_RUNBOOK)
    text = runbook.read_text()
    runbook.write_text(re.sub(rf"^### {_NAME}\n.*?(?=^###)", "", text, flags=re.MULTILINE | re.DOTALL))
    try:
        assert pytest.main(["-q", "-p", "no:cacheprovider", _HAS_A_SECTION]) == pytest.ExitCode.TESTS_FAILED
    finally:
        runbook.write_text(text)


if __name__ == "__main__":
    prove()
