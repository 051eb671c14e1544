"""The Grafana dashboard: complete, importable, readable."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.prometheus.promql import groupings


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_panels_have_what_readers_need(dashboard: dict[str, Any]) -> None:
    """A title of its own, a sentence about it, a unit, a data source that the reader chooses."""
    shown = panels(dashboard)
    titles = [panel["title"] for panel in shown]
    assert len(titles) == len(set(titles))
    for panel in shown:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] not in {"", "none"}, panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))


def test_ids_are_unique_and_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    """Grafana would move or merge them without a word."""
    everything = dashboard["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    cells: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not covered & cells, panel["title"]
        cells |= covered


@pytest.mark.parametrize(
    "metric",
    [
        "penstock_transfers_total",
        "penstock_transfers_in_flight",
        "penstock_oldest_transfer_start_timestamp_seconds",
        "penstock_transfer_failures_total",
        "penstock_load_outcomes_total",
        "penstock_recomputed_tokens_total",
        "penstock_recomputed_items_total",
        "penstock_deferrals_total",
        "penstock_deferred_requests",
        "penstock_handshake_duration_seconds_bucket",
        "penstock_send_leases",
        "penstock_policy_info",
        "penstock_engines_connected",
        "penstock_hook_installed",
        "penstock_events_dropped_total",
        "penstock_late_reads_total",
        "penstock_peer_quarantine_state",
        "penstock_quarantines_total",
        "penstock_collateral_delay_seconds_sum",
        "penstock_held_blocks",
        "penstock_engine_paused",
        "penstock_eplb_rebalances_total",
        "penstock_eplb_pause_seconds_sum",
        "penstock_eplb_rebalance_duration_seconds_sum",
        "penstock_eplb_balancedness_ratio_sum",
        "penstock_eplb_experts_total",
    ],
)
def test_what_must_be_seen(dashboard: dict[str, Any], metric: str) -> None:
    """Each of these has a panel."""
    assert [
        panel["title"]
        for panel in panels(dashboard)
        if any(metric in target["expr"] for target in panel["targets"])
    ]


def test_cluster_and_namespace_narrow_everything(dashboard: dict[str, Any]) -> None:
    """And where a series has no such label, "All" is ".*", which fits a label that is absent."""
    variables = {item["name"]: item for item in dashboard["templating"]["list"] if item["type"] == "query"}
    for name, item in variables.items():
        assert (item["allValue"], item["includeAll"], item["multi"]) == (".*", True, True), name
        assert item["current"]["value"] == "$__all"
    expressions = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    expressions += [
        item["definition"] for name, item in variables.items() if name not in {"cluster", "namespace"}
    ]
    for expression in expressions:
        selectors = re.findall(r"\{([^{}]*)\}", expression)
        assert selectors
        for selector in selectors:
            # The median of the peers is recorded without a cluster.
            assert 'cluster=~"$cluster"' in selector or "median_of_peers" in expression, expression
            assert 'namespace=~"$namespace"' in selector, expression


def test_links_lead_somewhere(dashboard: dict[str, Any], alerts: list[dict[str, Any]]) -> None:
    """To a panel of this dashboard, to this dashboard for one peer, or to the section of an alert; each alert has a panel."""
    ids = {panel["id"] for panel in panels(dashboard)}
    runbook = {rule["annotations"]["runbook_url"]: rule["alert"] for rule in alerts}
    linked = set()
    for panel in panels(dashboard):
        for link in panel.get("links", []):
            place = re.match(r"/d/penstock\?viewPanel=(\d+)&", link["url"])
            if place is None:
                assert link["title"] == f"Runbook: {runbook[link['url']]}"
                linked.add(runbook[link["url"]])
            else:
                assert int(place[1]) in ids - {panel["id"]}
                (title,) = (each["title"] for each in panels(dashboard) if each["id"] == int(place[1]))
                assert link["title"] == title
        for link in panel["fieldConfig"]["defaults"].get("links", []):
            assert link["url"].startswith("/d/penstock?var-peer=${__field.labels.peer}&")
            assert any("peer" in groupings(target["expr"], "by") for target in panel["targets"])
    assert linked == set(runbook.values())
    (link,) = dashboard["links"]
    assert {url.partition("#")[0] for url in runbook} == {link["url"]}


def test_a_rehearsal_is_never_taken_for_a_failure(dashboard: dict[str, Any]) -> None:
    """A graph of failures, of outcomes or of their cost shows real ones or rehearsed ones, never both."""
    marked = (
        "penstock_transfer_failures_total",
        "penstock_load_outcomes_total",
        "penstock_recomputed_tokens_total",
        "penstock_recomputed_items_total",
    )
    kinds = [
        "true" if 'rehearsal="true"' in target["expr"] else "false"
        for panel in panels(dashboard)
        for target in panel["targets"]
        if any(name in target["expr"] for name in marked)
        and ('rehearsal="true"' in target["expr"]) != ('rehearsal="false"' in target["expr"])
    ]
    everything = sum(
        any(name in target["expr"] for name in marked)
        for panel in panels(dashboard)
        for target in panel["targets"]
    )
    assert len(kinds) == everything
    assert set(kinds) == {"true", "false"}


def test_policy_changes_are_annotations(dashboard: dict[str, Any]) -> None:
    """Each change stands at its own time, in milliseconds as Grafana takes it."""
    (annotation,) = dashboard["annotations"]["list"]
    assert annotation["expr"].startswith("penstock_policy_last_change_timestamp_seconds{")
    assert annotation["expr"].endswith("* 1000")
    assert annotation["useValueForTime"] is True
    assert annotation["enable"] is True
