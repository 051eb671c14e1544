"""An event with a field: an engine empties its prefix cache."""

from __future__ import annotations

import os

from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from tests.recipes.edits import Edit, Recipe
from tests.support.agent.agent import running_agent
from tests.support.samples.stand_in_engine import StandInEngine

_KIND = "prefix_cache_reset"
_EVENTS = "proto/penstock/proto/v1/events.proto"
_CONTRACT = "tests/proto/golden/contract.txt"
_VIEW = "agent/penstock/agent/views/events.py"
RECIPE = Recipe(
    "How to add an event",
    (
        Edit(
            _EVENTS,
            "    SourceStopped source_stopped = 35;\n",
            after=f"    PrefixCacheReset {_KIND} = 37;\n",
        ),
        Edit(
            _EVENTS,
            "// A transfer was given up but its release was refused",
            before="// The engine emptied its prefix cache.\nmessage PrefixCacheReset {\n  uint64 blocks = 1;\n}\n\n",
        ),
        Edit(
            _CONTRACT,
            "penstock.v1.Event.quarantine_changed = ",
            before=f"penstock.v1.Event.{_KIND} = 37 oneof(body) penstock.v1.PrefixCacheReset\n",
        ),
        Edit(
            _CONTRACT,
            "penstock.v1.ProbeResult.PROBE_RESULT_ERROR = ",
            before="penstock.v1.PrefixCacheReset.blocks = 1 uint64\n",
        ),
        Edit(
            _VIEW,
            '    "answer_suspected": _answer_suspected,\n',
            after=f'    "{_KIND}": _prefix_cache_reset,\n',
        ),
        Edit(
            _VIEW,
            "_WORDS: dict[str, Callable[[Any], str]] = {\n",
            before="def _prefix_cache_reset(body: events.PrefixCacheReset) -> str:\n"
            "    return f\"{text.count(body.blocks, 'cached block')} emptied\"\n\n\n",
        ),
    ),
    make=("proto", "schema"),
    checks=(
        "tests/proto/test_contract.py",
        "tests/agent/ctl/test_schema.py::test_the_published_schema_is_current",
    ),
)


def prove() -> None:
    """Emit it by an engine's runtime; a real agent stores and counts it, and ``get events`` shows its field."""
    with running_agent() as agent:
        engine = StandInEngine({"PENSTOCK_ENDPOINT": agent.listen}).start()
        engine.emit(_KIND, blocks=3)
        engine.settle()
        engine.stop()
        os.environ["AGENTCTL_ADDRESS"] = agent.admin
        shown = CliRunner().invoke(cli, ["get", "events", "--kind", _KIND], catch_exceptions=False).output
        assert "3 cached blocks emptied" in shown, shown
        assert agent.metric("penstock_events_total", kind=_KIND) == 1


if __name__ == "__main__":
    prove()
