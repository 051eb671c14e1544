"""Arguments of agentctl: a wrong one is one sentence and exit code 2."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner, Result
from penstock.agent.ctl.lazy_group import LazyGroup
from penstock.agent.ctl.main import _SECTIONS, cli

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOWHERE = "unix:///nowhere/admin.sock"


def _run(*arguments: str, stdin: str | None = None, address: str = _NOWHERE) -> Result:
    return CliRunner(env={"AGENTCTL_ADDRESS": address}).invoke(cli, arguments, input=stdin)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bogus"], "'bogus'; use one of top, diagnose, doctor, get, describe"),
        (
            ["get", "bogus"],
            "agentctl get has no 'bogus'; use one of policy, engines, peers, requests, events",
        ),
        (["--bogus"], "No such option '--bogus'"),
        (["get", "engines", "-o", "xml"], "'xml' is not one of 'table', 'wide', 'json', 'yaml'"),
        (["get", "engines", "-l", "role=("], "selector 'role=(' cannot be read; write it like role=decode"),
        (["get", "events", "--since", "5"], "'5' is not a duration such as 30s, 5m or 1h30m"),
        (["get", "events", "--since", "0s"], "'0s' is zero"),
        (["get", "events", "--mode", "x"], "'x' is not one of 'handshake', 'setup'"),
        (["get", "events", "--limit", "0"], "0 is not in the range"),
        (
            ["get", "policy", "x", "--effective", "0"],
            "--effective shows the merge of all policies; omit NAME",
        ),
        (["describe", "engine", "decode/"], "engine 'decode/' cannot be read; write its index (0)"),
        (["trace"], "Missing argument 'REQUEST_ID'"),
        (["set-policy"], "NAME is missing; write agentctl set-policy NAME --kv-load-failure recompute"),
        (["set-policy", "p"], "nothing to set; give a flag such as --kv-load-failure recompute"),
        (["set-policy", "p", "--kv-load-failure", "x"], "'x' is not one of 'recompute', 'fail', 'auto'"),
        (
            ["set-policy", "p", "-f", "-"],
            "-f reads the whole policy; omit NAME and the field flags",
        ),
        (["set-policy", "p", "--ttl", "soon"], "'soon' is not a duration"),
        (["apply"], "Missing option '--filename' / '-f'"),
        (["apply", "-f", "/nowhere"], "'/nowhere' cannot be read: No such file or directory"),
        (["rollback", "p", "--to-generation", "0"], "0 is not in the range x>=1"),
        (["pause", "decode/"], "engine 'decode/' cannot be read"),
    ],
)
def test_a_wrong_use_is_one_sentence(arguments: list[str], sentence: str) -> None:
    """On stderr, with exit code 2, before any call to the agent."""
    result = _run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("agentctl: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("address", ["nowhere", "unix:relative", "tcp://x:1", "host:"])
def test_an_address_that_cannot_be_read_is_named(address: str) -> None:
    """The error has the two forms of an address."""
    result = _run("get", "engines", address=address)
    assert (result.exit_code, result.stderr) == (
        2,
        f"agentctl: address {address!r} is not valid; write unix:///path/of/the/socket or host:port\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["get", "engines"],
        ["set-policy", "p", "--kv-load-failure", "fail"],
        ["watch"],
        ["pause"],
        ["explain", "x"],
    ],
)
def test_an_agent_that_is_not_there_is_one_sentence(arguments: list[str]) -> None:
    """For calls and for streams."""
    result = _run(*arguments)
    assert (result.exit_code, result.stderr) == (
        1,
        f"agentctl: no agent answers at {_NOWHERE}: 'agentctl doctor' says why (--address names another)\n",
    )


def test_the_address_may_come_after_the_command_or_from_the_environment() -> None:
    """The option nearest to the command counts."""
    result = CliRunner().invoke(cli, ["get", "engines", "--address", "/nearer"])
    assert "at unix:///nearer:" in result.stderr
    result = CliRunner().invoke(cli, ["get", "engines"], env={"AGENTCTL_ADDRESS": "unix:///given"})
    assert "at unix:///given:" in result.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "<stdin>:1: this is not YAML: "),
        ("a: 1\na: 2\n", "<stdin>:2: 'a' is there twice, first in line 1; leave one"),
        ("{}: {? [1] : 2}", "None is no name of a field; quote it"),
        ("", "<stdin> has no manifest"),
        ("kind: List\nitems: []\n", "<stdin> has no manifest"),
        ("a: !!binary aGVsbG8=", "is nothing that JSON can say here; quote it"),
        (
            "a: !!python/object:os.system {}",
            "<stdin>:1: tag:yaml.org,2002:python/object:os.system is nothing that JSON can say",
        ),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(text: str, sentence: str) -> None:
    """Before any call to the agent."""
    result = _run("apply", "-f", "-", stdin=text)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_help_and_groups_need_no_agent() -> None:
    """Help exits with 0; a group without a command prints its help and exits with 2."""
    assert _run("--help").exit_code == 0
    assert "set-policy" in _run("--help").stdout
    assert _run("get").exit_code == 2
    assert "engines" in _run("get").stdout
    assert _run("set-policy", "--help").exit_code == 0


def test_the_help_has_every_command_in_a_section() -> None:
    """Every command is in one section."""
    text = _run("--help").stdout
    for name in cli.list_commands(click.Context(cli)):
        assert len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1, name
    assert "\nCommands:" not in text


@pytest.mark.parametrize(
    ("section", "room"),
    [
        ("Inspect", "commands.inspect"),
        ("Change policies", "commands.policies"),
        ("Orders to engines", "commands.orders"),
        ("Other", "commands"),
    ],
)
def test_a_command_lies_in_the_room_of_its_section(section: str, room: str) -> None:
    """Its subcommands, too; ``top`` has a package of its own."""
    found = set()
    for name in _SECTIONS[section]:
        command = cli.get_command(click.Context(cli), name)
        groups = [command._lazy] if isinstance(command, LazyGroup) else []
        places = [path for lazy in groups for path, _ in lazy.values()]
        places += [cli._lazy[name][0]] if name in cli._lazy else []
        found |= {path.partition(":")[0].rpartition(".")[0] for path in places}
    assert found - {f"penstock.agent.ctl.{each}" for each in ("routers", "top")} == {
        f"penstock.agent.ctl.{room}"
    }


def test_help_is_fast_because_it_imports_little() -> None:
    """``--help`` imports neither gRPC nor YAML nor pydantic."""
    code = (
        "import sys, json; from penstock.agent.ctl.main import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: print(json.dumps(sorted(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = set(json.loads(output.splitlines()[-1]))
    assert modules & {"grpc", "yaml", "pydantic", "structlog", "google.protobuf", "asyncio"} == set()


@pytest.mark.parametrize("command", ["get engines", "get peers", "get policy", "doctor", "diagnose"])
def test_a_command_imports_what_it_needs(command: str) -> None:
    """A table needs no YAML; what an agent judges is not judged again, so no rules of policies, and no pydantic."""
    code = (
        "import sys, json; from penstock.agent.ctl.main import cli\n"
        f"try: cli.main([*{command.split()!r}, '--address', '/nowhere'])\n"
        "except SystemExit: print(json.dumps(sorted(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout
    modules = set(json.loads(output.splitlines()[-1]))
    assert "grpc" in modules
    assert (
        modules & {"yaml", "pydantic", "penstock.rules", "penstock.agent.policy", "hashlib", "aiohttp"}
        == set()
    )


_INSTALLED = (sys.executable, "-c", "from penstock.agent.__main__ import agentctl; agentctl()")


@pytest.mark.parametrize(
    ("command", "code"), [("--help", 0), ("doctor --address /nowhere", 1), ("get nonsense", 2)]
)
def test_the_installed_command_ends_with_its_code_and_all_its_output(command: str, code: int) -> None:
    """It does not take the interpreter apart, but what it printed is whole: in a pipe, too."""
    ended = subprocess.run([*_INSTALLED, *command.split()], capture_output=True, text=True, check=False)
    assert ended.returncode == code
    text = CliRunner().invoke(cli, command.split()).output
    assert (ended.stdout + ended.stderr).split()[-12:] == text.split()[-12:]


@pytest.mark.parametrize(("streams", "code"), [(">/dev/full", 1), (">&-", 0)])
def test_output_that_cannot_be_written_is_one_sentence(streams: str, code: int) -> None:
    """A full disk fails the command; who closed its output wants none."""
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", *_INSTALLED, "--help"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    sentence = "agentctl: the output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (code, sentence if code else "")


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_only_where_they_are_wanted(environment: dict[str, str], coloured: bool) -> None:
    """On a terminal, unless NO_COLOR is set or TERM is dumb."""
    result = CliRunner().invoke(cli, ["doctor", "--address", "/nowhere"], env=environment, color=True)
    assert ("\x1b[" in result.stdout) is coloured


def test_every_command_takes_all_formats() -> None:
    """Except top, bundle, page, completion, and subcommands of config that print no list."""

    def commands(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from commands(command, *names, name)
            else:
                yield (*names, name), command

    without = {("top",), ("bundle",), ("completion",), ("drill", "stop")}
    documents = ["table", "wide", "json", "yaml"]
    for names, command in commands(cli):
        choices = [
            list(option.type.choices)
            for option in command.params
            if option.name == "output" and isinstance(option.type, click.Choice)
        ]
        lists = names[0] == "get" or names[-1] in {"list", "status", "history", "routers"}
        expected = [[*documents, "name"] if lists else documents]
        if names == ("get", "map"):
            expected = [[*documents, "name", "dot", "mermaid"]]
        if names in without or (names[0] == "config" and names[-1] != "get-contexts"):
            expected = choices
        assert choices == expected, names
        assert command.help


def _groups(group: click.Group, context: click.Context) -> Iterator[tuple[click.Group, click.Context]]:
    yield group, context
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _groups(command, click.Context(command, parent=context, info_name=name))


def test_no_help_text_ends_in_the_middle() -> None:
    """Lists of commands have their first sentences whole."""
    for group, context in _groups(cli, click.Context(cli, info_name="agentctl")):
        listed = group.get_help(context).partition("Options:")[2].splitlines()
        assert [line for line in listed if re.search(r"\w\.\.\.$", line)] == [], context.command_path
