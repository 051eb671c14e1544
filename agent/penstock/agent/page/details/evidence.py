"""In which plot one sees a condition, by the kind of the cause. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.page.details.detail import MinutesSection, PlotSection
from penstock.agent.page.details.engine import PLOT_TITLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MINUTES: Final = "minutes"


class Place(NamedTuple):
    """Where one sees it: a plot, or the minutes of a pair; and what to look for."""

    plot: str
    look: str


_FAILURES = Place(MINUTES, "look for bars, the failures of a minute")
_GATES = Place("ttft", "look for the layer of the gate at which requests wait")
_LOADS = Place("loads", "look for bytes that fall while loads go on; of a peer that is cut off both fall")
_HELD = Place("held", "look for a share that rises and does not fall again")
_QUEUE = Place("queue", "look for requests that wait while as many run")
_ENDED = Place("failed", "look for the share that failed, or was recomputed")
_GAP = Place("requests", "look for a curve that falls, or ends where nothing was reported")
# What no curve shows: the one that it is about, and why it looks as always.
_ANSWERS = Place("loads", "no curve shows it, as nothing fails: the loads from the peer are among these")
_POLICY = Place("failed", "no curve shows it: the policy before stays in force")
_CLOCK = Place("ttft", "no curve shows it: times between engines are off by the clocks")
_EXPERTS = Place("queue", "no curve shows it by itself: where it stalls steps, requests wait")

PLACES: Final[Mapping[str, Place]] = {
    "policy_fails_loads": _ENDED,
    "recompute_budget_exhausted": _ENDED,
    "deadline_ends_waits": _ENDED,
    "policy_refused": _POLICY,
    "paused": _GAP,
    "out_of_rotation": _GAP,
    "drill": _FAILURES,
    "drill_ended": _FAILURES,
    "healthy_peer_quarantined": _LOADS,
    "incompatible_peer": _FAILURES,
    "incompatible_pair": _FAILURES,
    "peer_refuses": _FAILURES,
    "peer_resets": _FAILURES,
    "peer_times_out": _FAILURES,
    "peer_corrupts": _FAILURES,
    "peer_evicts": _FAILURES,
    "peer_speaks_otherwise": _FAILURES,
    "peer_fails": _FAILURES,
    "addresses_refuse": _FAILURES,
    "wrong_engine_at_address": _FAILURES,
    "encoder_fails": _FAILURES,
    "peer_slow": _GATES,
    "encoder_slow": _GATES,
    "first_tokens_late": _GATES,
    "slow_transfers": _LOADS,
    "late_reads": _HELD,
    "leases_expire": _HELD,
    "leases_wait": _HELD,
    "aborted_loads_hold_blocks": _HELD,
    "pinned_blocks": _HELD,
    "saves_hold_blocks": _HELD,
    "upstream_invalid_peer": _LOADS,
    "peer_stays_quarantined": _LOADS,
    "eplb_stalls": _GATES,
    "eplb_fails": _EXPERTS,
    "eplb_stopped": _EXPERTS,
    "rebalance_overdue": _EXPERTS,
    "rebalance_unfinished": _EXPERTS,
    "load_not_started": _QUEUE,
    "load_missing": _ENDED,
    "call_stuck": _QUEUE,
    "step_stuck": _QUEUE,
    "thread_dead": _QUEUE,
    "worker_silent": _QUEUE,
    "no_capacity": _QUEUE,
    "scheduler_paused": _QUEUE,
    "steps_without_tokens": _QUEUE,
    "no_steps": _QUEUE,
    "answers_suspect": _ANSWERS,
    "weights_differ": _ANSWERS,
    "engine_id_shared": _ANSWERS,
    "versions_mixed": _FAILURES,
    "no_transfer_parameters": _ENDED,
    "recompute_storm": _ENDED,
    "agent_blind": _GAP,
    "engine_lost": _GAP,
    "engine_away": _GAP,
    "process_lost": _GAP,
    "entries_lost": _GAP,
    "clock_offset": _CLOCK,
}
"""By kind; a test compares it with the rules of the diagnosis."""


def evidence_section(kind: str, engines: Sequence[str], peer: str) -> PlotSection | MinutesSection:
    """Return the plot in which one sees a condition, of the first of its *engines*; of a kind that is not known, failures."""
    plot, look = PLACES.get(kind, _FAILURES)
    engine = engines[0] if engines else ""
    if plot == MINUTES:
        only = engine if len(engines) == 1 else ""
        return MinutesSection("Failures and deferrals", only, peer, look)
    first = f"; {engine} is the first of {len(engines)} engines" if len(engines) > 1 else ""
    return PlotSection(
        f"{PLOT_TITLES[plot]}{f' of {engine}' if engine else ''}", plot, engine, f"{look}{first}"
    )
