"""A column of a ``get`` table: the rank of an event."""

from __future__ import annotations

import os

from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from tests.recipes.edits import Edit, Recipe
from tests.support.agent.agent import running_agent
from tests.support.samples.stand_in_engine import StandInEngine

_VIEW = "agent/penstock/agent/views/events.py"
RECIPE = Recipe(
    "How to add a column",
    (
        Edit(_VIEW, '"WHAT", "PROCESS", "POSITION"', instead='"WHAT", "PROCESS", "RANK", "POSITION"'),
        Edit(_VIEW, "                item.process,\n", after="                str(item.event.rank),\n"),
        Edit(_VIEW, "        wide=2,\n", instead="        wide=3,\n"),
    ),
)


def prove() -> None:
    """List an event of a real agent: the column is there with ``-o wide``, and only there."""
    with running_agent() as agent:
        engine = StandInEngine({"PENSTOCK_ENDPOINT": agent.listen}).start()
        engine.emit("lease_closed")
        engine.settle()
        engine.stop()
        os.environ["AGENTCTL_ADDRESS"] = agent.admin
        command = ["get", "events", "--kind", "lease_closed"]
        narrow, wide = (
            CliRunner().invoke(cli, [*command, *more], catch_exceptions=False).output.splitlines()
            for more in ((), ("-o", "wide"))
        )
        assert "RANK" not in narrow[0], narrow
        assert wide[0].split()[-2:] == ["RANK", "POSITION"], wide
        assert wide[1].split()[-2] == "0", wide


if __name__ == "__main__":
    prove()
