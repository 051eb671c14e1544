"""Families of samples, and Prometheus' text formats that carry them."""

from __future__ import annotations

from penstock.agent.metrics.exposition.text_formats import (
    Distribution,
    ExemplarPoint,
    Family,
    Sample,
    join,
    negotiate,
    write,
    write_registry,
)

__all__ = [
    "Distribution",
    "ExemplarPoint",
    "Family",
    "Sample",
    "join",
    "negotiate",
    "write",
    "write_registry",
]
