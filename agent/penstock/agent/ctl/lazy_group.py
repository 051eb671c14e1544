"""Command groups that import a command when it runs, and print an error as one sentence."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from keyword import iskeyword
from typing import Any

import click
from click.shell_completion import CompletionItem
from penstock.agent.ctl.errors import FailedError, UsageError, hinted_here, not_understood
from penstock.agent.ctl.printing import group_output, output_of_groups, say
from penstock.agent.views.command_lines import PROGRAM

# Of a help text the first sentence is listed, uncut: it is folded to the terminal.
_UNCUT = 1000
# A full disk, a broken one, and a quota.
_UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
# The spellings of what commands show, as kubectl has them: the names of commands are the first or the second.
_SPELLINGS = (
    ("engine", "engines", "eng"),
    ("peer", "peers", "pe"),
    ("request", "requests", "req"),
    ("event", "events", "ev"),
    ("policy", "policies", "pol"),
)


class LazyGroup(click.Group):
    """A group whose commands are ``name -> (module, help)`` or ``name -> (module:attribute, help)``.

    Without an attribute, the command's own name is the attribute's. The help lists commands by *sections*; the rest
    come last, and those in *hidden* not at all. Commands are imported when they run: ``--help`` and shell completion
    do not import gRPC. What a command shows may be named in the singular, the plural and in short, and with a name
    behind a slash: ``get eng``, ``get engine/0``.
    """

    def __init__(
        self,
        *args: Any,
        lazy: dict[str, tuple[str, str]] | None = None,
        sections: dict[str, tuple[str, ...]] | None = None,
        hidden: tuple[str, ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.hidden_commands = hidden
        self._sections = sections or {}
        self._lazy = lazy or {}
        self.params.append(group_output())

    def _real_name(self, name: str) -> str:
        """Return the name of the command that *name* spells; *name* itself if it spells none."""
        known = {*self._lazy, *self.commands}
        same = next((words for words in _SPELLINGS if name in words), ())
        return name if name in known else next((word for word in same if word in known), name)

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return [name for name, _ in self._rows()]

    def _rows(self) -> list[tuple[str, str]]:
        """Return names and help texts without importing a command."""
        rows = {name: text for name, (_, text) in self._lazy.items()}
        rows |= {name: command.get_short_help_str(_UNCUT) for name, command in self.commands.items()}
        for name in self.hidden_commands:
            del rows[name]
        first = [name for names in self._sections.values() for name in names if name in rows]
        return [(name, rows[name]) for name in dict.fromkeys([*first, *rows])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        name = self._real_name(cmd_name)
        if name not in self._lazy:
            return super().get_command(ctx, name)
        path, _, attribute = self._lazy[name][0].partition(":")
        module = importlib.import_module(path)
        attribute = attribute or name.replace("-", "_")
        command: click.Command = getattr(module, f"{attribute}_" if iskeyword(attribute) else attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an error lists the known ones."""
        known = {*self._lazy, *self.commands}
        kind, slash, rest = args[0].partition("/")
        if slash and rest and self._real_name(kind) in known:
            args = [kind, rest, *args[1:]]
        name = self._real_name(args[0])
        if not ctx.resilient_parsing and not name.startswith("-") and name not in known:
            raise click.UsageError(
                f"{ctx.command_path} has no {args[0]!r}; use one of {', '.join(self.list_commands(ctx))}"
            )
        found = super().resolve_command(ctx, args)
        if not ctx.resilient_parsing and output_of_groups(ctx) and not _has_output(found[1]):
            raise click.UsageError(f"{ctx.command_path} {name} has no option --output")
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        """Return commands and options that begin with *incomplete*, without importing the commands."""
        found = [
            CompletionItem(name, help=text) for name, text in self._rows() if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        rows = dict(self._rows())
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, rows.pop(name)) for name in names])
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(list(rows.items()))


def _has_output(command: click.Command | None) -> bool:
    return command is not None and any(option.name == "output" for option in command.params)


class RootGroup(LazyGroup):
    """The outermost group: prints an error as one sentence and exits with its code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command line and exit."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
            if sys.stdout:
                sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(error.exit_code)
        except click.ClickException as error:
            say(f"{kwargs.get('prog_name') or PROGRAM}: {_sentence(error)}", err=True)
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(130)
        except BrokenPipeError:
            # The reader (head, less) closed the pipe; Python must not fail again on its own flush.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            say(
                f"{kwargs.get('prog_name') or PROGRAM}: the output cannot be written: {error.strerror}",
                err=True,
            )
            # What is left cannot be written either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; add the connection options to the command lines in its errors.

        What an answer does that nobody has foreseen is an error like others.
        """
        try:
            return super().invoke(ctx)
        except (FailedError, UsageError) as error:
            raise type(error)(hinted_here(error.message, ctx)) from error
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if (sentence := not_understood(error, ctx)) is None:
                raise
            raise sentence from error


def _sentence(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None and ";" not in message:
        return f"{message}; see {context.command_path} --help"
    return message
