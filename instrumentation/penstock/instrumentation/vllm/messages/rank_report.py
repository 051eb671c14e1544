"""The base of what a worker reports to the scheduler about a step: it travels as the connector's own worker metadata.

vLLM pickles it in the worker, combines the ranks' with ``aggregate`` and hands it to the scheduler. A connector that uses the field
itself keeps its metadata as *inner*.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankReport(Generic[T]):
    """One step of one rank, or of several that were aggregated. All fields but *inner* are tuples.

    Attributes:
        failures: loads that failed, in the order in which they did.
        inner: the connector's own metadata.

    """

    failures: tuple[T, ...] = ()
    inner: Any = field(default=None, kw_only=True)

    def __bool__(self) -> bool:
        return True

    def aggregate(self, other: Any) -> Self:
        """Combine with another rank's; the connectors' own are combined by themselves."""
        theirs = other if isinstance(other, type(self)) else type(self)(inner=other)
        if self.inner is None or theirs.inner is None:
            inner = self.inner if theirs.inner is None else theirs.inner
        else:
            inner = self.inner.aggregate(theirs.inner)
        tuples = {
            each.name: getattr(self, each.name) + getattr(theirs, each.name)
            for each in fields(self)
            if each.name != "inner"
        }
        return type(self)(inner=inner, **tuples)
