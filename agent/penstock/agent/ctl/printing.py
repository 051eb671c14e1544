"""Lines on the terminal, and the option ``-o``: its formats, and its place before or behind the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem
from penstock.agent.views.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

JSONPATH = "jsonpath="
_DOCUMENTS = ("table", "wide", "json", "yaml")
_LISTS = (*_DOCUMENTS, "name")
_META = "penstock.output"


class OutputType(click.Choice[str]):
    """One of *choices*, or ``jsonpath=TEMPLATE``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check *value*; the template of a JSONPath is parsed before anything is asked of the agent."""
        # As kubectl, -o=json: click takes the sign for a part of the value.
        value = value.removeprefix("=") if isinstance(value, str) else value
        if not isinstance(value, str) or not value.startswith(JSONPATH):
            if value not in self.choices:
                known = ", ".join(map(repr, self.choices))
                self.fail(f"{value!r} is not one of {known}, {JSONPATH}TEMPLATE", param, ctx)
            return value
        from penstock.agent.ctl.jsonpath import parse_template  # noqa: PLC0415  (the help does without it)

        try:
            parse_template(value.removeprefix(JSONPATH))
        except ValueError as error:
            self.fail(f"the JSONPath cannot be read: {error}", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the formats that begin with *incomplete*."""
        found = super().shell_complete(ctx, param, incomplete)
        return [*found, CompletionItem(JSONPATH)] if JSONPATH.startswith(incomplete) else found


class _OutputOption(click.Option):
    """``-o`` of a command; its default is the format that stands before the command."""

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        """Return the format of a group, or the command's own default."""
        return ctx.meta.get(_META) or super().get_default(ctx, call)


def with_output(*, wide: bool = False, names: bool = False, more: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Add ``-o``; unless *wide*, the command sees ``table`` for ``wide``; *names*: also ``name``, and *more* formats."""
    formats = (*(_LISTS if names else _DOCUMENTS), *more)

    def narrowed(_: click.Context, __: click.Parameter, value: str) -> str:
        return value if wide or value != "wide" else "table"

    return click.option(
        "--output",
        "-o",
        cls=_OutputOption,
        type=OutputType(formats),
        default="table",
        callback=narrowed,
        metavar="FORMAT",
        help=f"Output format: {', '.join(formats)} or {JSONPATH}TEMPLATE.",
    )


def with_document_output(function: F) -> F:
    """Add ``-o`` of a command that has no table; the default is YAML."""
    return click.option(
        "--output",
        "-o",
        cls=_OutputOption,
        type=click.Choice(["yaml", "json"]),
        default="yaml",
        show_default=True,
        help="Output format.",
    )(function)


def group_output() -> click.Option:
    """Return ``-o`` of a group: the format of its commands."""
    return click.Option(
        ["--output", "-o"],
        type=OutputType(_LISTS),
        expose_value=False,
        callback=_remember,
        metavar="FORMAT",
        help="Output format of the command; here or behind it.",
    )


def output_of_groups(context: click.Context) -> str | None:
    """Return the format that stands before the command; None for none."""
    found: str | None = context.meta.get(_META)
    return found


def is_table(output: str) -> bool:
    """Return whether *output* is a table."""
    return output in {"table", "wide"}


def _remember(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        context.meta[_META] = value


def say(*lines: str, err: bool = False) -> None:
    """Print lines, escaped by :func:`printable`."""
    click.echo("\n".join(map(printable, lines)), err=err)
