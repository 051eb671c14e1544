"""What alerts and panels count: the first value of a series, and nothing that an engine, an agent or Prometheus begins with."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from penstock.agent.metrics.catalogue import METRICS, MetricKind, from_log

from tests.support.prometheus.promql import metrics
from tests.support.prometheus.rules import write_rules_about
from tests.support.prometheus.server import promtool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Rules = list[dict[str, Any]]

FROM_ZERO: Final = ":from_zero"
_COUNTERS: Final = {
    name
    for metric in METRICS
    if metric.kind in {MetricKind.COUNTER, MetricKind.HISTOGRAM}
    for name in metric.samples
    # Quantiles are of many observations: they may miss the first in a bucket.
    if not name.endswith("_bucket")
}
# They ask whether something has not happened: to count a first value makes them quiet.
_OF_SILENCE: Final = {"PenstockEplbStopped", "PenstockIdleButHolding"}
# Their condition has to last for as long as their window, so one burst makes them pending: by intention.
_PENDING: Final = {"PenstockEplbStalls", "PenstockPeerSlow", "PenstockFirstTokensLate"}

_STEP: Final = 30
_BORN: Final = 130
_AFTER: Final = 40
"""Steps of half a minute: an hour with a past, and twenty minutes from the burst on."""


class Counter(NamedTuple):
    """A series and the value that it has at once; {peer} stands for a peer of its own, minute after minute."""

    series: str
    value: float


class Rising(NamedTuple):
    """A series that has been there for long: its first value, and by how much it rises in half a minute."""

    series: str
    start: float
    step: float = 0


class Burst(NamedTuple):
    """What makes an alert fire at once: series that appear beside those that were there."""

    counters: tuple[Counter, ...]
    past: tuple[Rising, ...] = ()


_LOAD = 'penstock_load_outcomes_total{{L,channel="kv",outcome="{outcome}",decided_by="vllm",mode="transfer",peer="{{peer}}",rehearsal="false"}}'
_FAILED, _RECOMPUTED = (_LOAD.format(outcome=outcome) for outcome in ("failed", "recomputed"))
_FAILURE = 'penstock_transfer_failures_total{{L,channel="kv",connector="NixlConnector",mode="{mode}",error_type="{error}",peer="{{peer}}",rehearsal="false"}}'
_CLOSED = Rising('penstock_events_total{L,kind="request_closed"}', 5000, 100)
_DURATION = 'penstock_transfer_duration_seconds_{part}{{L,channel="kv",peer="{peer}"}}'
_FIRST = 'penstock_time_to_first_token_seconds_{part}{{L,gate="{gate}"}}'
_SEEN = tuple(
    Rising(_DURATION.format(part=part, peer=peer), step, step)
    for peer in ("a", "b", "c")
    for part, step in (("sum", 0.4), ("count", 20))
)

BURSTS: Final = {
    "PenstockRequestsFailing": Burst((Counter(_FAILED, 400),), (_CLOSED,)),
    "PenstockFailuresAfterPolicyChange": Burst(
        (Counter(_FAILED, 400),),
        (Rising("penstock_policy_last_change_timestamp_seconds{L}", _BORN * _STEP - 600),),
    ),
    "PenstockTransfersFailing": Burst((Counter(_FAILURE.format(mode="transfer", error="remote_reset"), 60),)),
    "PenstockRecomputeStorm": Burst((Counter(_RECOMPUTED, 100),), (_CLOSED,)),
    "PenstockIncompatiblePeers": Burst(
        (Counter(_FAILURE.format(mode="handshake", error="incompatible"), 1),)
    ),
    "PenstockPeerHoldsUpOthers": Burst(
        (Counter('penstock_collateral_delay_seconds_sum{L,channel="kv",caused_by_peer="slow"}', 60),)
    ),
    "PenstockCorruptTransfers": Burst(
        (Counter('penstock_verified_transfers_total{L,channel="kv",peer="{peer}",result="mismatch"}', 1),)
    ),
    "PenstockLateReads": Burst((Counter('penstock_late_reads_total{L,peer="{peer}"}', 1),)),
    "PenstockSuspectAnswers": Burst((Counter('penstock_suspect_answers_total{L,reason="nan"}', 1),)),
    "PenstockEventsDropped": Burst((Counter('penstock_events_dropped_total{L,reason="queue_full"}', 12),)),
    "PenstockEplbFailed": Burst(
        (Counter('penstock_eplb_rebalances_total{L,trigger="interval",result="error"}', 1),)
    ),
    "PenstockEplbStalls": Burst(
        (
            Counter("penstock_eplb_pause_seconds_sum{L}", 100),
            Counter("penstock_eplb_pause_seconds_count{L}", 10),
        )
    ),
    "PenstockPeerSlow": Burst(
        tuple(
            Counter(_DURATION.format(part=part, peer="slow"), value)
            for part, value in (("sum", 60), ("count", 60))
        ),
        _SEEN,
    ),
    # A gate that no request of this engine was counted at before, such as one of a newer Penstock; another engine had it.
    "PenstockFirstTokensLate": Burst(
        tuple(
            Counter(_FIRST.format(part=part, gate="queue"), value)
            for part, value in (("sum", 900), ("count", 90))
        ),
        tuple(
            Rising(_FIRST.format(part=part, gate="queue").replace("{L", "{M"), 0, step)
            for part, step in (("sum", 2), ("count", 20))
        ),
    ),
    "PenstockMessagesRefused": Burst(
        (Counter('penstock_agent_refused_messages_total{A,reason="held"}', 30),)
    ),
    "PenstockTracesGivenUp": Burst((Counter('penstock_agent_pruned_batches_total{A,exported="false"}', 1),)),
    "PenstockRolloutAborted": Burst(
        (Counter("penstock_policy_rollout_aborts_total{A}", 1),),
        (Rising('penstock_policy_rollout_state{A,policy="p",state="aborted"}', 1),),
    ),
}


class Story(NamedTuple):
    """What happens to all bursts at once.

    Attributes:
        counter: the values of a counter that has that value by then, so many steps late.
        there: the values of what was there before, by its first value and its step: scraped as the story says.
        of: the counters that it can happen to.
        resumed: the agent says that a label set of theirs has returned.

    """

    name: str
    counter: Callable[[float, int], str]
    there: Callable[[float, float], str] = lambda start, step: f"{start}+{step}x{_BORN + _AFTER}"
    of: Callable[[str], bool] = lambda _: True
    resumed: bool = False


def _absent(steps: int) -> str:
    return f"_x{steps} " if steps else ""


def _late(start: float, step: float) -> str:
    return f"{_absent(_BORN)}{start + step * _BORN}+{step}x{_AFTER}"


def _away(start: float, step: float) -> str:
    """Return the values of what was not scraped for ten minutes."""
    return f"{start}+{step}x{_BORN - 21} stale _x19 {start + step * _BORN}+{step}x{_AFTER}"


def _has_free_labels(series: str) -> bool:
    return (
        next(metric for metric in METRICS if series.partition("{")[0] in metric.samples).free != frozenset()
    )


SEEN: Final = (
    Story(
        "series appear with their first value", lambda value, late: f"{_absent(_BORN + late)}{value}x{_AFTER}"
    ),
    Story(
        "series come back within an hour and have risen",
        lambda value, late: f"{value}x29 stale {_absent(_BORN - 31 + late)}{2 * value}x{_AFTER}",
    ),
)
UNSEEN: Final = (
    Story(
        "the first scrape of all by this Prometheus", lambda value, _: f"_x{_BORN} {value}x{_AFTER}", _late
    ),
    Story(
        "the first scrape of engines by a Prometheus that has scraped their agent",
        lambda value, _: f"_x{_BORN} {value}x{_AFTER}",
        _late,
        lambda series: "{A" not in series,
    ),
    Story(
        "Prometheus was away for two minutes",
        lambda value, _: f"{value}x{_BORN - 5} _x4 {value}x{_AFTER}",
        lambda start, step: f"{start}+{step}x{_BORN - 5} _x4 {start + step * _BORN}+{step}x{_AFTER}",
    ),
    Story(
        "the agent was out of reach for ten minutes, and counted",
        lambda value, _: f"{value}x{_BORN - 21} stale _x19 {10 * value}x{_AFTER}",
        _away,
        # Whose windows are longer: that is an increase within them.
        lambda series: "_eplb_" not in series and "_rollout_" not in series,
    ),
    Story(
        "the agent was out of reach for ten minutes, and has new series",
        lambda value, _: f"_x{_BORN} {value}x{_AFTER}",
        _away,
    ),
    Story(
        "series come back within an hour as they were",
        lambda value, _: f"{value}x29 stale _x{_BORN - 31} {value}x{_AFTER}",
    ),
    Story(
        "label sets come back after more than an hour as they were",
        lambda value, _: f"{value}x4 stale _x{_BORN - 6} {value}x{_AFTER}",
        of=_has_free_labels,
        resumed=True,
    ),
    Story("counters begin anew", lambda value, _: f"{100 * value}x{_BORN - 1} 0x{_AFTER}"),
)


def _input(story: Story) -> Iterator[dict[str, str]]:
    """Yield the series of all bursts in *story*, each alert's in a job of its name and in the story's namespace."""
    for alert, burst in BURSTS.items():
        job = f'{{namespace="{story.name}",job="{alert}"'
        target = f'{job},instance="i:9464"'
        engine, other = f'{target},engine="0"', f'{job},instance="j:9464",engine="0"'

        def named(series: str, target: str = target, engine: str = engine, other: str = other) -> str:
            return series.replace("{L", engine).replace("{M", other).replace("{A", target)

        counters = [counter for counter in burst.counters if story.of(counter.series)]
        for series in ("penstock_engine_connected{L}", "penstock_engine_connected{M}"):
            yield {"series": named(series), "values": story.there(1, 0)}
        agent = story.there(1, 0) if "{A" in burst.counters[0].series else f"1x{_BORN + _AFTER}"
        yield {"series": named("penstock_state_created_timestamp_seconds{A}"), "values": agent}
        for past in burst.past:
            yield {"series": named(past.series), "values": story.there(past.start, past.step)}
        for counter in counters:
            for peer in range(8 if "{peer}" in counter.series else 1):
                name = named(counter.series).replace("{peer}", f"p-{peer}:5600")
                yield {
                    "series": name,
                    "values": story.counter(counter.value, 2 * peer if story in SEEN else 0),
                }
        if story.resumed and counters:
            metric = counters[0].series.partition("{")[0].removesuffix("_sum")
            yield {
                "series": named(f'{from_log.LABEL_SETS_RESUMED.name}{{L,metric="{metric}"}}'),
                "values": f"_x{_BORN} 1x{_AFTER}",
            }


def _run(stories: tuple[Story, ...], expected: list[dict[str, Any]], directory: Path) -> None:
    """Tell all *stories* at once, each in a namespace of its own: promtool's time is that of the rules, not of the series."""
    series = [each for story in stories for each in _input(story)]
    test = {"interval": f"{_STEP}s", "input_series": series, "promql_expr_test": expected}
    content = {
        "rule_files": write_rules_about((each["series"] for each in series), directory),
        "evaluation_interval": f"{_STEP}s",
        "group_eval_order": ["penstock.counters", "penstock"],
        "tests": [test],
    }
    file = directory / "test.yml"
    file.write_text(json.dumps(content))
    result = promtool("test", "rules", str(file))
    assert result.returncode == 0, result.stdout


def test_alerts_rules_and_panels_count_from_zero(
    queries: list[tuple[str, str, str]], alerts: Rules, recordings: Rules
) -> None:
    """Nothing but the rules that put the zero there uses a counter as it is scraped, and each of those is used."""
    texts = [
        *((where, expression) for where, expression, _ in queries),
        *((rule["alert"], rule["expr"]) for rule in alerts),
        *((rule["record"], rule["expr"]) for rule in recordings if not rule["record"].endswith(FROM_ZERO)),
    ]
    used: set[str] = set()
    for where, expression in texts:
        names = metrics(expression)
        assert not names & _COUNTERS, (
            f"{where}: count {FROM_ZERO}, or the first value of a series is not seen"
        )
        used |= {name for name in names if name.endswith(FROM_ZERO)}
    assert used == {rule["record"] for rule in recordings if rule["record"].endswith(FROM_ZERO)}


def test_every_alert_that_counts_has_a_burst(alerts: Rules, recordings: Rules) -> None:
    """So that the stories below are told of each alert, whatever rules stand between it and a counter."""
    recorded = {rule["record"]: metrics(rule["expr"]) for rule in recordings}

    def counts(expression: str) -> bool:
        seen: set[str] = set()
        names = metrics(expression)
        while names - seen:
            seen |= names
            names = set().union(*(recorded.get(name, set()) for name in seen))
        return any(name.endswith(FROM_ZERO) for name in seen)

    assert {rule["alert"] for rule in alerts if counts(rule["expr"])} - _OF_SILENCE == set(BURSTS)


def test_the_first_value_of_a_series_is_counted(tmp_path: Path) -> None:
    """Each alert fires for what its series begin or come back with; or is pending, where it has to last."""
    expected = []
    for story, alert in product(SEEN, BURSTS):
        state = "pending" if alert in _PENDING else "firing"
        alerts = f'ALERTS{{namespace="{story.name}",job="{alert}",alertname="{alert}",alertstate="{state}"}}'
        expected.append(
            {
                "expr": f"group(count_over_time({alerts}[{_AFTER * _STEP}s]))",
                "eval_time": f"{(_BORN + _AFTER) * _STEP}s",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        )
    _run(SEEN, expected, tmp_path)


@pytest.mark.parametrize(
    "stories",
    [
        # A first scrape, a gap, a return after an hour, a reset.
        pytest.param((UNSEEN[0], UNSEEN[3], UNSEEN[6], UNSEEN[7]), id="one of each kind"),
        pytest.param(UNSEEN, id="all", marks=pytest.mark.long),
    ],
)
def test_what_is_not_new_is_not_counted(stories: tuple[Story, ...], tmp_path: Path) -> None:
    """No alert is even pending after a first scrape, a gap, a return or a reset."""
    expected = {
        "expr": f"count by (namespace, alertname, job) (count_over_time(ALERTS[{_AFTER * _STEP}s]))",
        "eval_time": f"{(_BORN + _AFTER) * _STEP}s",
        "exp_samples": [],
    }
    _run(stories, [expected], tmp_path)
