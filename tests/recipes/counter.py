"""A counter of an event that has none: leases that ended."""

from __future__ import annotations

from penstock.proto.v1.events_pb2 import LEASE_ENDING_EXPIRED

from tests.recipes.edits import Edit, Recipe
from tests.support.agent.agent import running_agent
from tests.support.samples.stand_in_engine import StandInEngine

_NAME = "penstock_leases_closed_total"
_HELP = "Leases of blocks that ended, by how."
_UPDATES = "agent/penstock/agent/metrics/series/updates.py"
RECIPE = Recipe(
    "How to add a metric",
    (
        Edit(
            "agent/penstock/agent/metrics/catalogue/from_log.py",
            "SUSPECT_ANSWERS: Final = Metric(\n",
            before=f'LEASES_CLOSED: Final = Metric(\n    "{_NAME}",\n    MetricKind.COUNTER,\n    "{_HELP}",\n    ("ending",),\n)\n',
        ),
        Edit(
            _UPDATES,
            "def _answer_suspected(",
            before="def _lease_closed(_event: events.Event, body: events.LeaseClosed) -> Iterator[Update]:\n"
            "    yield Update(from_log.LEASES_CLOSED, (label(events.LeaseEnding, body.ending),), 1)\n\n\n",
        ),
        Edit(
            _UPDATES,
            '    "answer_suspected": _answer_suspected,\n',
            after='    "lease_closed": _lease_closed,\n',
        ),
        Edit(
            "tests/agent/metrics/golden/catalogue.txt",
            "penstock_suspect_answers_total counter\n",
            before=f"{_NAME} counter\n  {_HELP}\n  labels: engine, server, ending\n\n",
        ),
    ),
    make=("observability",),
    checks=("tests/agent/metrics/catalogue/test_catalogue.py::test_the_catalogue_is_as_agreed",),
)


def prove() -> None:
    """Emit the event by an engine's runtime; a real agent exposes the counter."""
    with running_agent() as agent:
        engine = StandInEngine({"PENSTOCK_ENDPOINT": agent.listen}).start()
        engine.emit("lease_closed", ending=LEASE_ENDING_EXPIRED)
        engine.settle()
        engine.stop()
        assert agent.metric(_NAME, ending="expired") == 1, agent.get("/metrics")[1]


if __name__ == "__main__":
    prove()
