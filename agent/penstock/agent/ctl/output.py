"""Prints tables, JSON and YAML.

Texts of clients, peers and engines (request ids, addresses, errors) are escaped: they must not move the cursor,
forge a line or change text direction.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.tables import aligned, cell_width, table
from penstock.agent.views.text import printable, with_escapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.message import Message

_JSONPATH = "jsonpath="


def say_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    click.echo(table(headers, rows))


def say_lines(lines: Sequence[Sequence[str]], widths: Sequence[int] = ()) -> list[int]:
    """Print lines of cells in columns of at least *widths*; return the widths of the columns."""
    cells = [tuple(map(printable, line)) for line in lines]
    widest = [max(map(cell_width, column)) for column in zip(*cells, strict=True)]
    taken = [max(pair) for pair in zip(widest, widths or widest, strict=True)]
    click.echo("\n".join(aligned(line, taken) for line in cells))
    return taken


def say_document(document: Any, output: str) -> None:
    """Print JSON values as :func:`dump` writes them."""
    text = dump(document, output)
    # The template of a JSONPath may end its lines itself.
    click.echo(text, nl=not text.endswith("\n"))


def say_documents(documents: Iterable[Any]) -> None:
    """Print YAML documents."""
    from penstock.agent.ctl.yaml_text import dump_yaml  # noqa: PLC0415  (it needs YAML)

    click.echo(dump_yaml(*documents))


def show(message: Message, output: str) -> None:
    """Print *message* as JSON or YAML."""
    say_document(as_json_values(message), output)


def dump(document: Any, output: str) -> str:
    """Return *document* in the format ``json``, ``line`` (JSON), ``yaml`` or ``jsonpath=TEMPLATE``.

    Only a template may put a newline at the end.
    """
    if output.startswith(_JSONPATH):
        from penstock.agent.ctl.jsonpath import fill_template, parse_template  # noqa: PLC0415  (its patterns)

        return fill_template(parse_template(output.removeprefix(_JSONPATH)), document)
    if output == "yaml":
        from penstock.agent.ctl.yaml_text import dump_yaml  # noqa: PLC0415  (it needs YAML)

        return dump_yaml(document)
    text = json.dumps(document, indent=2 if output == "json" else None, ensure_ascii=False)
    # Only strings of JSON contain such characters.
    return with_escapes(text, lambda character: json.dumps(character)[1:-1])


def warn_unreadable(count: int) -> None:
    """Warn on stderr about *count* damaged batches of the log."""
    for text in unreadable_words(count):
        click.echo(text, err=True)


def unreadable_words(count: int) -> list[str]:
    """Return the sentence about *count* damaged batches of the log; none for 0."""
    if not count:
        return []
    which = "1 batch of the log is" if count == 1 else f"{count} batches of the log are"
    return [f"{which} damaged on disk; their entries are missing here"]
