"""The films: an incident from a calm minute before it until ten minutes after its remedy, and what is said first at each phase.

``make record-films`` records them on real engines, one bundle a phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.incidents.table import CAUSES, NOTHING_WRONG

RECORDED: Final = Path(__file__).parents[2] / "golden" / "films"
"""Where they are: NAME/PHASE.bundle."""

ALERTS: Final = "alerts.json"
"""Beside them: the alerts of a real Prometheus that fire at each phase."""

PHASES: Final = {
    "calm": 0.0,
    "seconds": 10.0,
    "minute": 50.0,
    "five": 240.0,
    "remedied": 15.0,
    "after": 585.0,
}
"""How many seconds after the phase before each is recorded: calm, the fault's beginning, the remedy, ten minutes later."""


@dataclass(frozen=True, slots=True)
class Film:
    """What must be said of one film.

    Attributes:
        lasting: the kind of the first cause at each phase of the fault; empty where nothing is wrong.
        remedied: the same just after the remedy, when it is not known yet that the fault has ended.
        after: the same ten minutes later, where the machine that recorded was in trouble of its own.

    """

    name: str
    lasting: str
    remedied: str = ""
    after: str = ""

    def expected(self, phase: str) -> tuple[int, str]:
        """Return the exit code of ``agentctl diagnose`` at *phase*, and the kind of the first cause that lasts."""
        kinds = {"calm": "", "after": self.after, "remedied": self.remedied}
        kind = kinds.get(phase, self.lasting)
        return (CAUSES if kind else NOTHING_WRONG), kind


_ALL: Final = (
    # Ten others ran on its two cores in the end: prefill was slow.
    Film(
        "router-without-parameters",
        "no_transfer_parameters",
        remedied="no_transfer_parameters",
        after="peer_slow",
    ),
)
FILMS: Final = {film.name: film for film in _ALL}
"""By name."""
