"""How long the answers from a full journal take: ``make bench ONLY=diagnosis``.

There is no peer: nothing else answers from such a log. The journal is filled to the agent's default state limit with the requests of
64 engines and 1,000 peers; then 100,000 loads fail. The calls go through gRPC to the Admin service.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.proto.v1 import admin_pb2 as admin

from benchmarks.harness.results import Budget, Row, Section, Spread
from benchmarks.load.fleet_log import ENGINES, PEERS, FleetLog
from tests.support.agent.admin_server import running_admin
from tests.support.agent.quiet import quiet_logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.harness.interleave import Run
    from tests.support.agent.admin_server import AdminHarness

AREA: Final = "diagnosis"
TITLE: Final = "Answers from a full log"
MEANING: Final = (
    "`diagnose` and `bill` answer from the journal alone, with nothing prepared. They have to answer "
    "while an incident lasts, from the fullest journal that the agent keeps."
)
_NOTES: Final = (
    "Seconds of the clock, over gRPC, from a journal that fills 80 % of the default --state-limit, 1 GiB, in the last "
    f"minutes by {ENGINES} engines and {PEERS:,} peers; then with 100,000 failed loads of all of these peers on top."
)
# Of the journal's limit: no exporter runs here, so a full journal would take no more.
_FULL, _QUICK_FULL = 0.8, 0.07
_FAILURES, _QUICK_FAILURES = 100_000, 10_000
_ROUNDS, _QUICK_ROUNDS = 7, 3
_CALM: Final = "the full journal"
_FAILING: Final = "100,000 failures of 1,000 peers"
_BUDGETS: Final = {
    _CALM: Budget("diagnose, from a full journal of 1 GiB", 10),
    _FAILING: Budget("diagnose, 100,000 failures of 1,000 peers", 10),
}


def measure(run: Run) -> Section:
    """Measure the area."""
    rows = []
    with quiet_logs(), tempfile.TemporaryDirectory() as place, running_admin(Path(place)) as harness:
        log = FleetLog(harness)
        entries = log.fill(_QUICK_FULL if run.quick else _FULL)
        run.say(f"{entries:,} entries, {log.size >> 20} MiB")
        for name in (_CALM, _FAILING):
            if name == _FAILING:
                log.fail(_QUICK_FAILURES if run.quick else _FAILURES)
            run.say(name)
            rows += _rows(harness, name, _QUICK_ROUNDS if run.quick else _ROUNDS)
    return Section(AREA, TITLE, (_NOTES,), rows)


def _rows(harness: AdminHarness, name: str, rounds: int) -> list[Row]:
    calls: dict[str, Callable[[], object]] = {
        "diagnose": lambda: harness.stub.Diagnose(admin.DiagnoseRequest()),
        "bill": lambda: harness.stub.GetBill(admin.GetBillRequest()),
    }
    return [
        Row(
            what,
            "s",
            Spread.of([_seconds(call) for _ in range(rounds)]),
            name,
            budget=_BUDGETS[name] if what == "diagnose" else None,
        )
        for what, call in calls.items()
    ]


def _seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began
