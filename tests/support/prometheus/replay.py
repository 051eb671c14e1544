"""What the shipped alerts say of an incident that a test caused: scrapes of a real agent, replayed by promtool on a slower clock.

An alert looks back for minutes or an hour, and an incident of a test lasts for seconds. Neither the rules nor the scraped values
are changed for that; only the clock is: each scrape is given a minute, and what happened between two scrapes is spread evenly
over the minutes between them.

- A counter rises in a straight line from one scrape to the next; one that the earlier scrape lacks rises from 0.
- A gauge has the value of the later scrape; it is absent where the later scrape lacks it.
- A moment (a metric in ``_timestamp_seconds``) moves to its place on the slower clock.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import yaml

from tests.support.prometheus.promql import metrics as names_in
from tests.support.prometheus.rules import FILES, RULES, write_rules_about
from tests.support.prometheus.server import promtool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from demo.common.metrics import Metrics

_TARGET = {"job": "vllm", "instance": "pod-0:9464"}
_STEP = 30
_COUNTERS = ("_total", "_sum", "_count", "_bucket")
_MOMENTS = "_timestamp_seconds"
_FIRED = re.compile(r"Labels:\{(.*)\}\n\s*Annotations:\{(.*)\}")
_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')

Series = tuple[str, tuple[tuple[str, str], ...]]


class Alert(NamedTuple):
    """An alert that fires, as its receiver reads it."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def name(self) -> str:
        """The alert's name."""
        return self.labels["alertname"]

    @property
    def words(self) -> str:
        """Summary and description."""
        return f"{self.annotations['summary']}. {self.annotations['description']}"


@dataclass(frozen=True, slots=True)
class _Scrape:
    minute: float
    taken: float
    values: Mapping[Series, float]


class Replay:
    """Scrapes of one agent, each at a minute of the slower clock."""

    def __init__(self, metrics: Callable[[], Metrics]) -> None:
        """Take what scrapes the agent."""
        self._metrics = metrics
        self._scrapes: list[_Scrape] = []

    def scrape(self, minute: float) -> None:
        """Scrape the agent now; this is that minute of the slower clock, later than the one before."""
        values = {
            (sample.name, tuple(sorted({**sample.labels, **_TARGET}.items()))): sample.value
            for sample in self._metrics().samples
        }
        self._scrapes.append(_Scrape(minute, time.time(), values))

    def firing(self, directory: Path) -> list[Alert]:
        """Return the shipped alerts that fire at the minute of the last scrape, as promtool says.

        Args:
            directory: for promtool's input.

        """
        alerts = [
            rule
            for group in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
            for rule in group["rules"]
        ]
        used = {name for file in FILES for name in names_in((RULES / file).read_text())}
        series = list(self._series(used))
        test = {
            "rule_files": write_rules_about((each["series"] for each in series), directory),
            "evaluation_interval": f"{_STEP}s",
            "tests": [
                {
                    "interval": f"{_STEP}s",
                    "input_series": series,
                    # promtool tells what fires where something else was expected: here, that nothing does.
                    "alert_rule_test": [
                        {"eval_time": f"{self._seconds()}s", "alertname": rule["alert"], "exp_alerts": []}
                        for rule in alerts
                    ],
                }
            ],
        }
        file = directory / "replay.yml"
        file.write_text(yaml.safe_dump(test))
        said = promtool("test", "rules", str(file)).stdout
        assert "got:[" in said or "SUCCESS" in said, said
        return [Alert(_pairs(labels), _pairs(annotations)) for labels, annotations in _FIRED.findall(said)]

    def _seconds(self) -> int:
        return int(self._scrapes[-1].minute * 60)

    def _series(self, used: set[str]) -> Iterator[dict[str, str]]:
        every = {key for scrape in self._scrapes for key in scrape.values if key[0] in used}
        for name, labels in sorted(every):
            values = " ".join(self._values((name, labels)))
            text = ",".join(f"{label}={json.dumps(value)}" for label, value in labels)
            yield {"series": f"{name}{{{text}}}", "values": values}

    def _values(self, series: Series) -> Iterator[str]:
        name, _ = series
        for second in range(0, self._seconds() + 1, _STEP):
            later = next(scrape for scrape in self._scrapes if scrape.minute * 60 >= second)
            earlier = next(
                (scrape for scrape in reversed(self._scrapes) if scrape.minute * 60 < second), later
            )
            value = later.values.get(series)
            if value is None:
                yield "_"
            elif name.endswith(_COUNTERS):
                yield _number(self._between(earlier, later, series, second))
            elif name.endswith(_MOMENTS):
                yield _number(self._moved(value))
            else:
                yield _number(value)

    @staticmethod
    def _between(earlier: _Scrape, later: _Scrape, series: Series, second: int) -> float:
        end = later.values[series]
        if earlier is later:
            return end
        start = earlier.values.get(series, 0.0)
        share = (second - earlier.minute * 60) / ((later.minute - earlier.minute) * 60)
        return start + (end - start) * share

    def _moved(self, moment: float) -> float:
        """Return a moment on the slower clock; before the first scrape it runs as the real one."""
        first = self._scrapes[0]
        if moment <= first.taken or len(self._scrapes) == 1:
            return first.minute * 60 - (first.taken - moment)
        spans = list(pairwise(self._scrapes))
        earlier, later = next((span for span in spans if moment <= span[1].taken), spans[-1])
        share = min(1.0, (moment - earlier.taken) / (later.taken - earlier.taken))
        return 60 * (earlier.minute + (later.minute - earlier.minute) * share)


def _pairs(text: str) -> dict[str, str]:
    return {name: json.loads(value) for name, value in _PAIR.findall(text)}


def _number(value: float) -> str:
    return f"{value:.9g}"
