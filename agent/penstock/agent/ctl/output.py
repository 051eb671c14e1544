"""Prints tables, JSON and YAML.

Texts of clients, peers and engines (request ids, addresses, errors) are escaped: they must not move the cursor,
forge a line or change text direction.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import click
import yaml
from penstock.agent.ctl.jsonpath import fill_template, parse_template
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.tables import aligned, cell_width, table
from penstock.agent.views.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.message import Message

_JSONPATH = "jsonpath="
_UNPRINTABLE = re.compile(r"[^\n -~]")
# Numbers in YAML 1.2 and strings in 1.1, which PyYAML writes: some hashes and span ids.
_NUMBER = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|0o[0-7]+|0x[0-9a-fA-F]+")


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
    click.echo(dump_yaml(*documents))


def show(message: Message, output: str) -> None:
    """Print *message* as JSON or YAML."""
    say_document(as_json_values(message), output)


def dump(document: Any, output: str) -> str:
    """Return *document* in the format ``json``, ``line`` (JSON), ``yaml`` or ``jsonpath=TEMPLATE``.

    Only a template may put a newline at the end.
    """
    if output.startswith(_JSONPATH):
        return fill_template(parse_template(output.removeprefix(_JSONPATH)), document)
    if output == "yaml":
        return dump_yaml(document)
    text = json.dumps(document, indent=2 if output == "json" else None, ensure_ascii=False)
    # Only strings of JSON contain such characters.
    return _UNPRINTABLE.sub(lambda found: _escaped(found[0], json.dumps(found[0])[1:-1]), text)


def dump_yaml(*documents: Any) -> str:
    """Return YAML documents, without a newline at the end."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)
    # Such characters occur only in double-quoted strings.
    return _UNPRINTABLE.sub(lambda found: _escaped(found[0], f"\\U{ord(found[0]):08x}"), text.rstrip("\n"))


def _escaped(character: str, escape: str) -> str:
    return character if character.isprintable() else escape


class _Dumper(yaml.SafeDumper):
    """Double-quotes strings that need escapes, and quotes strings that look like numbers."""

    def ignore_aliases(self, _: Any) -> bool:
        """Write each value out: ``apply`` limits aliases."""
        return True

    def text(self, value: str) -> yaml.ScalarNode:
        """Represent a string."""
        style = None if value.isprintable() else '"'
        if _NUMBER.fullmatch(value):
            style = "'"
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.text)


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
