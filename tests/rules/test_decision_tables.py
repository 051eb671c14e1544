"""What is decided about a failed load: every combination."""

from __future__ import annotations

import itertools

import pytest
from penstock.rules.decisions import (
    DecidedBy,
    EcLoss,
    KvLoss,
    Outcome,
    Trigger,
    decide_ec,
    decide_kv,
)
from penstock.rules.policy import (
    Action,
    Deferral,
    EcLoadFailure,
    KvLoadFailure,
    Policy,
)

from tests.support.policy.full_budgets import full_budgets

MAX = 100
OUTCOMES = {"recomputed": Outcome.RECOMPUTED, "failed": Outcome.FAILED}
ACTIONS = {"-": None, "recompute": Action.RECOMPUTE, "fail": Action.FAIL, "auto": Action.AUTO}

# "*" is any value, "-" none, "a/b" either; "own" is vLLM's configuration, or the connector's default.
KV_TABLE = """
trigger    onTimeout action     exported size        budget overBudget  outcome    decided_by
failure    *         -          *        *           *      *           own        vllm
failure    *         recompute  no       *           *      *           recomputed policy
failure    *         recompute  yes      *           *      *           failed     policy
failure    *         fail       *        *           *      *           failed     policy
failure    *         auto       yes      *           *      *           failed     policy
failure    *         auto       no       above       *      *           failed     policy
failure    *         auto       no       within/open room   *           recomputed policy
failure    *         auto       no       within/open empty  recompute   recomputed budget
failure    *         auto       no       within/open empty  fail/-      failed     budget
quarantine *         -          *        *           *      *           own        quarantine
quarantine *         recompute  no       *           *      *           recomputed quarantine
quarantine *         recompute  yes      *           *      *           failed     quarantine
quarantine *         fail       *        *           *      *           failed     quarantine
quarantine *         auto       yes      *           *      *           failed     quarantine
quarantine *         auto       no       above       *      *           failed     quarantine
quarantine *         auto       no       within/open room   *           recomputed quarantine
quarantine *         auto       no       within/open empty  recompute   recomputed budget
quarantine *         auto       no       within/open empty  fail/-      failed     budget
deadline   recompute *          no       *           *      *           recomputed deadline
deadline   recompute *          yes      *           *      *           failed     deadline
deadline   fail      *          *        *           *      *           failed     deadline
deadline   -         -          *        *           *      *           own        deadline
deadline   -         recompute  no       *           *      *           recomputed deadline
deadline   -         recompute  yes      *           *      *           failed     deadline
deadline   -         fail       *        *           *      *           failed     deadline
deadline   -         auto       yes      *           *      *           failed     deadline
deadline   -         auto       no       above       *      *           failed     deadline
deadline   -         auto       no       within/open room   *           recomputed deadline
deadline   -         auto       no       within/open empty  recompute   recomputed budget
deadline   -         auto       no       within/open empty  fail/-      failed     budget
"""

EC_TABLE = """
trigger    onTimeout action     media exported size         outcome    decided_by
failure    *         -          no    *        *            failed     vllm
failure    *         -          yes   yes      *            failed     vllm
failure    *         -          yes   no       *            own        vllm
failure    *         */-        no    *        *            failed     policy
failure    *         */-        yes   yes      *            failed     policy
failure    *         recompute  yes   no       *            recomputed policy
failure    *         fail       yes   no       *            failed     policy
failure    *         auto       yes   no       above        failed     policy
failure    *         auto       yes   no       within/open  recomputed policy
quarantine *         *          no    *        *            failed     quarantine
quarantine *         *          yes   yes      *            failed     quarantine
quarantine *         -          yes   no       *            own        quarantine
quarantine *         recompute  yes   no       *            recomputed quarantine
quarantine *         fail       yes   no       *            failed     quarantine
quarantine *         auto       yes   no       above        failed     quarantine
quarantine *         auto       yes   no       within/open  recomputed quarantine
deadline   *         *          no    *        *            failed     deadline
deadline   *         *          yes   yes      *            failed     deadline
deadline   recompute *          yes   no       *            recomputed deadline
deadline   fail      *          yes   no       *            failed     deadline
deadline   -         -          yes   no       *            own        deadline
deadline   -         recompute  yes   no       *            recomputed deadline
deadline   -         fail       yes   no       *            failed     deadline
deadline   -         auto       yes   no       above        failed     deadline
deadline   -         auto       yes   no       within/open  recomputed deadline
"""

DIMENSIONS = {
    "trigger": ["failure", "quarantine", "deadline"],
    "onTimeout": ["-", "recompute", "fail"],
    "action": ["-", "recompute", "fail", "auto"],
    "media": ["yes", "no"],
    "exported": ["yes", "no"],
    "size": ["within", "above", "open"],
    "budget": ["room", "empty"],
    "overBudget": ["-", "recompute", "fail"],
}


def read_table(text):
    """Return the inputs' names and the rows."""
    head, *rows = [line.split() for line in text.strip().splitlines()]
    return head[:-2], rows


def only_row(names, rows, combination):
    """Return the outcome and the decider of the one row that matches."""
    matching = [
        row[len(names) :]
        for row in rows
        if all(fits(cell, value) for cell, value in zip(row, combination, strict=False))
    ]
    assert len(matching) == 1, f"{len(matching)} rows match {dict(zip(names, combination, strict=True))}"
    return matching[0]


def fits(cell, value):
    """Match one cell; ``*/-`` is any value but none."""
    if cell == "*/-":
        return value != "-"
    return cell == "*" or value in cell.split("/")


def combinations(names):
    """Return every combination of the inputs."""
    return list(itertools.product(*(DIMENSIONS[name] for name in names)))


def deferral(on_timeout):
    """Give a policy's deferral section, or none."""
    return None if on_timeout == "-" else Deferral(on_timeout=ACTIONS[on_timeout])


@pytest.mark.parametrize("own", ["recomputed", "failed"])
def test_every_kv_combination(own):
    """Each combination matches exactly one row of the table, and is decided as it says."""
    names, rows = read_table(KV_TABLE)
    for combination in combinations(names):
        outcome, decided_by = only_row(names, rows, combination)
        trigger, on_timeout, action, exported, size, room, over_budget = combination
        largest = None if size == "open" else MAX
        pair = full_budgets(MAX * 10, largest)
        if room == "empty":
            pair.enforced.acquire(pair.enforced.capacity)
        rule = KvLoadFailure(ACTIONS[action], largest, MAX * 10, ACTIONS[over_budget])
        decision = decide_kv(
            KvLoss(MAX + 1 if size == "above" else MAX, exported == "yes", Trigger[trigger.upper()]),
            vllm=OUTCOMES[own],
            policy=Policy(kv_load_failure=rule, deferral=deferral(on_timeout)),
            observed=None,
            budgets=pair,
        )
        expected = OUTCOMES[own if outcome == "own" else outcome], DecidedBy[decided_by.upper()]
        assert (decision.outcome, decision.decided_by) == expected, combination
        assert decision.reason
        assert decision.observed is None


@pytest.mark.parametrize("own", ["recomputed", "failed"])
def test_every_ec_combination(own):
    """Each combination matches exactly one row of the table, and is decided as it says."""
    names, rows = read_table(EC_TABLE)
    for combination in combinations(names):
        outcome, decided_by = only_row(names, rows, combination)
        trigger, on_timeout, action, media, exported, size = combination
        rule = EcLoadFailure(ACTIONS[action], None if size == "open" else 8)
        decision = decide_ec(
            EcLoss(9 if size == "above" else 8, media == "yes", exported == "yes", Trigger[trigger.upper()]),
            default=OUTCOMES[own],
            policy=Policy(ec_load_failure=rule, deferral=deferral(on_timeout)),
            observed=None,
        )
        expected = OUTCOMES[own if outcome == "own" else outcome], DecidedBy[decided_by.upper()]
        assert (decision.outcome, decision.decided_by) == expected, combination
        assert decision.reason
