"""Command lines of ``agentctl``, read off its commands: a new one is among them by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import click
from penstock.agent.ctl.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Commands that ask no agent.
_OF_NOBODY: Final = ("config", "completion", "top")
# What a required value of a type is.
_VALUES: Final = {
    "ENGINE": "0",
    "NAME": "p",
    "PEER": "10.0.0.1:5600",
    "ENGINE|PEER": "0",
    "ID": "1",
    "text": "r",
}
# Besides what is required; FILE is a file of one policy.
_MORE: Final = {
    "watch": ("--count", "1"),
    "drain": ("--timeout", "100ms", "--settle", "100ms"),
    "eject": ("0", "--timeout", "100ms"),
    "set-policy": ("p", "--kv-load-failure", "recompute"),
    "diff engine": ("1",),
    "drill stop": ("1",),
    "inject-fault": ("0",),
}
# Other ways through the same commands.
_WAYS: Final = (
    "get policy --effective 0",
    "get policy --by-hand",
    "get peers 10.0.0.1:5600",
    "get map 0",
    "get requests --deferred",
    "get requests --slow",
    "get events --since 1h",
    "diff policy p FILE",
    "apply -f FILE --wait --timeout 1s",
    "rollback p --wait --timeout 1s",
    "what-if -f FILE",
    "recommend --since 2h",
    "drill stop --all",
)


class CommandLine(NamedTuple):
    """What is typed behind ``agentctl``.

    Attributes:
        words: without the format.
        formats: that the command knows of table, JSON and YAML; of a command without a format an empty one.

    """

    words: tuple[str, ...]
    formats: tuple[str, ...]

    def typed(self, output: str) -> tuple[str, ...]:
        """Return the words with a format."""
        return (*self.words, "-o", output) if output else self.words


def command_lines(directory: Path, policy: str) -> list[CommandLine]:
    """Return a command line of each command that asks an agent; its files are below *directory*, *policy* is in one."""
    file = directory / "policy.json"
    file.write_text(policy)
    values = {**_VALUES, "path": str(file)}
    known = dict(_commands())
    found = [
        CommandLine((*name.split(), *_required(command, values), *_MORE.get(name, ())), _formats(command))
        for name, command in known.items()
    ]
    for each in _WAYS:
        command = next(known[name] for name in known if each.startswith(name))
        words = [str(file) if word == "FILE" else word for word in each.split()]
        found.append(CommandLine(tuple(words), _formats(command)))
    return [
        each._replace(words=(*each.words, "-f", str(directory / "bundle")))
        if each.words[0] == "bundle"
        else each
        for each in found
    ]


def _commands() -> Iterator[tuple[str, click.Command]]:
    with cli.make_context("agentctl", ["version"]) as context:
        yield from _below(cli, context, ())


def _below(
    group: click.Group, context: click.Context, path: tuple[str, ...]
) -> Iterator[tuple[str, click.Command]]:
    hidden = getattr(group, "hidden_commands", ())
    for name in (*group.list_commands(context), *hidden):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _below(command, context, (*path, name))
        elif command is not None and (*path, name)[0] not in _OF_NOBODY:
            yield " ".join((*path, name)), command


def _required(command: click.Command, values: Mapping[str, str]) -> Iterator[str]:
    for each in command.params:
        if each.required:
            if isinstance(each, click.Option):
                yield each.opts[0]
            yield each.type.choices[0] if isinstance(each.type, click.Choice) else values[each.type.name]


def _formats(command: click.Command) -> tuple[str, ...]:
    output = next((each for each in command.params if each.name == "output"), None)
    if output is None:
        return ("",)
    return tuple(each for each in ("table", "json", "yaml") if each in getattr(output.type, "choices", ()))
