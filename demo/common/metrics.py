"""The samples of a scrape, selected and summed by labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float

    def __str__(self) -> str:
        """Return it as Prometheus shows it."""
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{self.name}{{{labels}}} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Metrics:
    """All samples of one scrape."""

    samples: tuple[Sample, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse Prometheus' text format."""
        return cls(
            tuple(
                Sample(sample.name, dict(sample.labels), sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            )
        )

    def select(self, name: str, **labels: str) -> list[Sample]:
        """Return the samples of *name* that carry *labels*, among others."""
        return [
            sample
            for sample in self.samples
            if sample.name == name and labels.items() <= dict(sample.labels).items()
        ]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of *name* that carry *labels*; 0 if there is none."""
        return sum(sample.value for sample in self.select(name, **labels))
