"""Whether two ways of computing give the same greedy tokens, as far as a GPU promises that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many of some answers are the same.

    A GPU's kernels round by the shape of a batch, so that a near tie of two tokens may fall either way: a few answers may
    differ. Wrong KV or encoder outputs give other tokens in every answer.
    """

    same: int
    of: int

    def __str__(self) -> str:
        """Return it as a figure."""
        return f"{self.same} of {self.of} answers are the same token for token"

    @property
    def holds(self) -> bool:
        """Whether more than half are the same."""
        return 2 * self.same > self.of


def agreement(answers: Sequence[Hashable], expected: Sequence[Hashable]) -> Agreement:
    """Compare *answers* with those *expected*, one by one.

    Raises:
        ValueError: all those expected are the same, as those of a model that computes nothing.

    """
    if len(set(expected)) <= 1:
        raise ValueError(f"The answers to different prompts are all the same: {expected[:1]}")
    same = sum(mine == other for mine, other in zip(answers, expected, strict=True))
    return Agreement(same, len(expected))
