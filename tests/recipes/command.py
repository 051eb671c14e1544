"""A command of agentctl with a call of its own: the agent's clock."""

from __future__ import annotations

import json
import os

from click.testing import CliRunner
from penstock.agent.admin.authorization import READING
from penstock.agent.ctl.main import cli

from tests.recipes.edits import Edit, Recipe
from tests.support.agent.agent import running_agent

_AGENT = "agent/penstock/agent"
_PROTO = "proto/penstock/proto/v1/admin.proto"
_CONTRACT = "tests/proto/golden/contract.txt"
_CALLS = f"{_AGENT}/admin/calls/status.py"
_MAIN = f"{_AGENT}/ctl/main.py"
_COMMANDS = f"{_AGENT}/ctl/commands/program.py"
_CALL = '''async def get_clock(agent: AgentContext, _request: admin.GetClockRequest) -> admin.Clock:
    """Return the agent's time."""
    clock = admin.Clock()
    clock.now.FromDatetime(agent.now)
    return clock


'''
_COMMAND = '''

@click.command()
@with_output()
@with_place
@click.pass_context
def clock(context: click.Context, /, output: str, **_: Any) -> None:
    """Print the agent's time."""
    with closing(open_client(context)) as client:
        found: admin.Clock = client.call("GetClock", admin.GetClockRequest())
    if is_table(output):
        say(f"Agent time: {found.now.ToJsonString()}")
    else:
        show(found, output)
'''
RECIPE = Recipe(
    "How to add an agentctl command",
    (
        Edit(_PROTO, "  rpc GetStatus(", before="  rpc GetClock(GetClockRequest) returns (Clock);\n"),
        Edit(
            _PROTO,
            "message AgentStatus {\n",
            before="message GetClockRequest {}\n\nmessage Clock {\n  google.protobuf.Timestamp now = 1;\n}\n\n",
        ),
        Edit(
            _CONTRACT,
            "penstock.v1.Admin.GetEffectivePolicy(",
            before="penstock.v1.Admin.GetClock(GetClockRequest) returns (Clock)\n",
        ),
        Edit(
            _CONTRACT,
            "penstock.v1.ComparedEngine.deferred_seconds = ",
            before="penstock.v1.Clock.now = 1 google.protobuf.Timestamp\n",
        ),
        Edit(_CALLS, "async def get_status(", before=_CALL),
        Edit(
            f"{_AGENT}/admin/service.py",
            "    GetStatus = _unary(status.get_status)\n",
            after="    GetClock = _unary(status.get_clock)\n",
        ),
        Edit(f"{_AGENT}/admin/authorization.py", '        "GetStatus",\n', after='        "GetClock",\n'),
        Edit(_COMMANDS, "output import say_document\n", instead="output import say_document, show\n"),
        Edit(_COMMANDS, "", after=_COMMAND),
        Edit(
            _MAIN,
            '    "version": (f"{_PACKAGE}.program", ',
            before='    "clock": (f"{_PACKAGE}.program", "The agent\'s time."),\n',
        ),
        Edit(_MAIN, '"config", "version", "completion")', before='"clock", '),
        Edit(
            f"{_AGENT}/views/command_lines.py",
            '"bundle", "completion",',
            instead='"bundle", "clock", "completion",',
        ),
        Edit(
            f"{_AGENT}/ctl/command_schemas.py",
            '    "version": object_of(',
            before='    "clock": message_ref(admin.Clock),\n',
        ),
        Edit(f"{_AGENT}/ctl/json_schema.py", "    admin.Bill,\n", after="    admin.Clock,\n"),
        Edit(
            "docs/guides/agentctl.md",
            "- `agentctl version --client` asks no agent.\n",
            before="- `agentctl clock` prints the agent's time.\n",
        ),
        Edit(
            "tests/agent/ctl/test_schema.py",
            '    "version": [["version"], ["version", "--client"]],\n',
            before='    "clock": [["clock"]],\n',
        ),
    ),
    make=("proto", "schema"),
    checks=(
        "tests/proto/test_contract.py",
        "tests/agent/ctl/test_schema.py::test_the_published_schema_is_current",
        "tests/agent/ctl/test_schema.py::test_every_command_with_a_format_is_published",
        "tests/agent/ctl/test_schema.py::test_what_every_command_prints_is_valid",
        "tests/agent/ctl/test_hints.py",
        "tests/docs/test_agentctl_guide.py::test_every_command_is_in_a_guide",
    ),
)


def prove() -> None:
    """Ask a real agent, in words and as JSON; who may only read may ask."""
    assert "GetClock" in READING
    with running_agent() as agent:
        os.environ["AGENTCTL_ADDRESS"] = agent.admin
        shown = CliRunner().invoke(cli, ["clock"], catch_exceptions=False)
        printed = CliRunner().invoke(cli, ["clock", "-o", "json"], catch_exceptions=False)
    assert shown.output.startswith("Agent time: 2"), shown.output
    assert json.loads(printed.output)["now"].endswith("Z"), printed.output


if __name__ == "__main__":
    prove()
