"""deploy/prometheus-operator and docs/reference/metrics.md: generated from one source, and complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from penstock.agent.metrics.catalogue import METRICS

from tests.support.kubernetes.builds import VERSIONS, build, documents
from tests.support.prometheus.server import promtool
from tests.support.script import load_script

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "deploy" / "prometheus-operator"


script: Any = load_script("observability")


def _groups(file: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load(file.read_text())
    return list(document.get("spec", document)["groups"])


def _object() -> dict[str, Any]:
    return dict(yaml.safe_load((PLACE / "prometheusrule.yaml").read_text()))


def test_what_is_generated_is_up_to_date() -> None:
    """`make observability` would change nothing."""
    for path, text in script.generate(script.runbook_url()).items():
        assert (ROOT / path).read_text() == text, f"{path}: run `make observability`"


def test_the_rule_holds_what_prometheus_is_given_otherwise(tmp_path: Path) -> None:
    """The same rules and alerts in the same order; Prometheus accepts them, and the names of the groups differ."""
    files = [ROOT / "dashboards" / "prometheus" / name for name in ("rules.yml", "alerts.yml")]
    groups = _object()["spec"]["groups"]
    assert [group["rules"] for group in groups] == [
        group["rules"] for file in files for group in _groups(file)
    ]
    assert [group["name"] for group in groups] == ["penstock.rules", "penstock.counters", "penstock.alerts"]
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": groups}))
    result = promtool("check", "rules", str(rules))
    assert result.returncode == 0, result.stdout


def test_the_runbooks_address_stands_in_one_place() -> None:
    """Another address takes the place of each link, and nothing else changes."""
    url = "https://wiki.example/runbook.md"
    shipped = script.runbook_url()
    for path, text in script.generate(url).items():
        assert shipped not in text
        assert text.replace(url, shipped) == (ROOT / path).read_text()
    assert "penstock.dev/docs" not in (ROOT / "dashboards" / "prometheus" / "alerts.yml").read_text()
    # The repository's own document.
    assert (ROOT / shipped.partition("/blob/main/")[2]).is_file()


def test_the_reference_is_complete() -> None:
    """Each metric with type and labels (those of all engines' metrics once); each alert with its severity and section of the runbook."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = {
        row[0]: row
        for row in re.findall(r"^\| `(penstock_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", text, re.MULTILINE)
    }
    assert set(rows) == {metric.name for metric in METRICS}
    for metric in METRICS:
        _, kind, labels, words = rows[metric.name]
        assert kind == metric.kind.value
        assert tuple(re.findall(r"`(\w+)`", labels)) == metric.labels
        assert metric.per_engine == (text.index(f"| `{metric.name}` |") < text.index("\n## Of the agent\n"))
        assert words
    runbook = (ROOT / "docs" / "guides" / "runbook.md").read_text()
    for group in _groups(ROOT / "dashboards" / "prometheus" / "alerts.yml"):
        for rule in group["rules"]:
            link = f"[{rule['alert']}](../guides/runbook.md#{rule['alert'].lower()})"
            assert f"\n| {link} | {rule['labels']['severity']} | {rule['for']} | " in text
            assert f"\n### {rule['alert']}\n" in runbook


@pytest.mark.parametrize(
    "source",
    ["kustomize/component/source/penstock.yaml", "kustomize/daemonset/agent/daemonset.yaml"],
)
def test_the_monitor_scrapes_the_sidecar(source: str) -> None:
    """The port is the one that the manifests of the sidecar name, and the path is the agent's."""
    monitor = yaml.safe_load((PLACE / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == "/metrics"
    manifest = yaml.safe_load((ROOT / "deploy" / source).read_text())
    pod = (manifest.get("template") or manifest["spec"].get("template") or manifest)["spec"]
    ports = [
        port["containerPort"]
        for container in (*pod["containers"], *pod.get("initContainers", ()))
        for port in container.get("ports", ())
        if port["name"] == endpoint["port"]
    ]
    assert ports == [9464]


def test_prometheus_takes_the_relabelling(tmp_path: Path) -> None:
    """The rules by which a pod gets its job are valid ones."""
    monitor = yaml.safe_load((PLACE / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    relabelling = [
        {names.get(key, key): value for key, value in rule.items()} for rule in endpoint["relabelings"]
    ]
    config = tmp_path / "prometheus.yml"
    config.write_text(
        yaml.safe_dump({"scrape_configs": [{"job_name": "penstock", "relabel_configs": relabelling}]})
    )
    result = promtool("check", "config", str(config))
    assert result.returncode == 0, result.stdout
    assert {rule["target_label"] for rule in relabelling} == {"job"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("place", "objects"),
    [
        (
            "prometheus-operator",
            {("PodMonitor", "penstock"), ("PrometheusRule", "penstock"), ("ConfigMap", "penstock-dashboard")},
        ),
        ("otel", {("ConfigMap", "penstock-collector"), ("ConfigMap", "penstock-jaeger")}),
    ],
)
def test_kustomize_builds(place: str, objects: set[tuple[str, str]], version: str) -> None:
    """The objects are there, and a ConfigMap holds its file as it is."""
    built = documents(build(ROOT / "deploy" / place, version))
    # What a generator makes of a configuration has a hash of its content behind its name.
    found = {(item["kind"], re.sub(r"-[0-9a-z]{10}$", "", item["metadata"]["name"])) for item in built}
    assert found == objects
    sources = {
        path.read_text() for part in ("dashboards/grafana", "deploy/otel") for path in (ROOT / part).iterdir()
    }
    assert {text for item in built for text in item.get("data", {}).values()} <= sources
