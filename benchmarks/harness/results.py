"""Result rows: a value with its spread, its peer's from the same run, and its budget.

Pure. An area's rows travel between processes, and into files, as plain JSON without what is a default.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Better: TypeAlias = Literal["lower", "higher"]

HOLDS: Final = "holds"
FAILS: Final = "does not hold"
OPEN: Final = "not decided"
SHOWN: Final = "shown"
"""The verdicts. OPEN: the confidence interval contains the limit. SHOWN: there is no limit."""

_TAIL: Final = 40
"""One part in so many lies below the interval, and one above."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a measure over the rounds.

    Attributes:
        low, high: the quartiles. Of a percentile, which has none: *least* and *most*, within what was measured.
        least, most: the interval in which the true median, or percentile, lies with 95 %, from the ranks of the rounds. Where
            they are too few for it: of a median all of them, of a percentile no end at all (infinite).

    """

    median: float
    low: float
    high: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the spread of one value a round.

        Raises:
            ValueError: there is none.

        """
        if not values:
            raise ValueError("A spread needs the value of one round at least.")
        ranked = sorted(values)
        count = len(ranked)
        if count == 1:
            return cls.one(ranked[0])
        low, middle, high = statistics.quantiles(ranked, n=4, method="inclusive")
        out = _outside(count)
        return cls(middle, low, high, ranked[out], ranked[count - 1 - out])

    @classmethod
    def percentile(cls, values: Sequence[float], percent: int) -> Self:
        """Return a percentile of one value a round, which takes many rounds to be known: the 99th about four hundred.

        Raises:
            ValueError: there is none.

        """
        if not values:
            raise ValueError("A percentile needs the value of one round at least.")
        ranked = sorted(values)
        count = len(ranked)
        below, above = _ranks(count, percent)
        least = ranked[below] if below >= 0 else -math.inf
        most = ranked[above] if above < count else math.inf
        found = ranked[-(-count * percent // 100) - 1]
        return cls(found, max(least, ranked[0]), min(most, ranked[-1]), least, most)

    @classmethod
    def one(cls, value: float) -> Self:
        """Return the spread of a single total."""
        return cls(value, value, value, value, value)

    @property
    def varies(self) -> bool:
        """Whether there is any spread."""
        return self.low != self.high

    @property
    def rounded(self) -> Spread:
        """The same to six digits, more than are shown."""
        return Spread(*(float(f"{each:.6g}") for each in astuple(self)))

    def as_json(self) -> float | list[float]:
        """Return its five numbers in their order; one where they are all the same."""
        numbers = astuple(self)
        return self.median if len(set(numbers)) == 1 else list(numbers)

    @classmethod
    def from_json(cls, given: float | list[float]) -> Self:
        """Parse the result of :meth:`as_json`."""
        return cls(*given) if isinstance(given, list) else cls.one(given)


def _outside(count: int) -> int:
    """Return how many of *count* ranked values lie below the median's interval, and as many above.

    How many lie below the true median is binomial.
    """
    below = out = 0
    while (below := below + math.comb(count, out)) * _TAIL <= 2**count:
        out += 1
    return max(out - 1, 0)


def _ranks(count: int, percent: int) -> tuple[int, int]:
    """Return the ranks, from 0, between which a percentile lies with 95 %; -1 and *count* where there is no such rank.

    How many of *count* values lie below it is binomial.
    """
    share = percent / 100
    below, lower, upper = 0.0, -1, count
    for rank in range(count):
        ways = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        below += math.exp(ways + rank * math.log(share) + (count - rank) * math.log1p(-share))
        if below * _TAIL <= 1:
            lower = rank
        if (1 - below) * _TAIL <= 1:
            upper = rank
            break
    return lower, upper


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return the spread of the ratios, taken round by round: other load affects both sides of a round."""
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit of DESIGN §11.

    Attributes:
        name: the line of the table of budgets that the row answers.
        limit: in the row's unit, or a ratio; None where the value is only to be shown.
        of: what is limited.
        at_most: or else at least.

    """

    name: str
    limit: float | None
    of: Literal["value", "ratio"] = "value"
    at_most: bool = True

    def verdict(self, spread: Spread) -> str:
        """Return ``HOLDS``, ``FAILS``, ``OPEN`` or ``SHOWN``."""
        limit = self.limit
        if limit is None:
            return SHOWN
        inside = [end <= limit if self.at_most else end >= limit for end in (spread.least, spread.most)]
        if all(inside):
            return HOLDS
        return OPEN if any(inside) else FAILS


@dataclass(frozen=True, slots=True)
class Row:
    """One measure.

    Attributes:
        group: the rows of a group are one table.
        what: named so that group, what and peer together name the row.
        peer: the project measured beside it in the same run; empty for none.
        value: Penstock's; None where there are only ratios.
        ratio: Penstock's ÷ the peer's.
        better: which direction of the ratio is good.

    """

    what: str
    unit: str
    value: Spread | None
    group: str = ""
    peer: str = ""
    theirs: Spread | None = None
    ratio: Spread | None = None
    budget: Budget | None = None
    better: Better = "lower"

    @property
    def key(self) -> str:
        """Return the row's name within its area."""
        return " / ".join(part for part in (self.group, self.what, self.peer) if part)

    @property
    def verdict(self) -> str:
        """Return the budget's verdict; empty without one."""
        if self.budget is None:
            return ""
        limited = self.value if self.budget.of == "value" else self.ratio
        if limited is None:
            raise ValueError(f"{self.key!r} has a budget for its {self.budget.of}, and has none.")
        return self.budget.verdict(limited)


def against(
    what: str,
    unit: str,
    ours: Sequence[float],
    peer: str,
    theirs: Sequence[float],
    *,
    group: str = "",
    budget: Budget | None = None,
    better: Better = "lower",
) -> Row:
    """Return the row of two interleaved subjects, with one value of each a round."""
    return Row(
        what, unit, Spread.of(ours), group, peer, Spread.of(theirs), ratios(ours, theirs), budget, better
    )


@dataclass(frozen=True, slots=True)
class Section:
    """The results of one run of an area.

    Attributes:
        notes: paragraphs above the tables: what was compared, and how.
        meaning: what the area decides, for the page that a person reads.
        plotted: words one of which names the rows to draw; all that have a ratio without it.
        circumstances: machine, load, versions, date, commit; by name, in their order.

    """

    area: str
    title: str
    notes: Sequence[str]
    rows: Sequence[Row]
    circumstances: Mapping[str, str] = field(default_factory=dict)
    meaning: str = ""
    plotted: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "rows"}
        return {**given, "rows": [_stored(row) for row in self.rows]}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Parse the result of :meth:`as_json`."""
        return cls(**{**given, "rows": [_row(each) for each in given["rows"]]})


_SPREADS: Final = ("value", "theirs", "ratio")


def _stored(row: Row) -> dict[str, Any]:
    """Return a row as JSON values, without what is a default."""
    found: dict[str, Any] = {}
    for each in fields(row):
        value = getattr(row, each.name)
        if value is not None and value != each.default:
            found[each.name] = value
    spreads = {name: found[name].as_json() for name in _SPREADS if found.get(name) is not None}
    return {**found, **spreads, **({"budget": asdict(row.budget)} if row.budget is not None else {})}


def _row(given: Mapping[str, Any]) -> Row:
    spreads = {name: Spread.from_json(given[name]) for name in _SPREADS if given.get(name) is not None}
    budget = Budget(**given["budget"]) if "budget" in given else None
    return Row(**{"value": None, **given, **spreads, "budget": budget})
