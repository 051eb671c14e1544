"""Printing lines: the only way, beside documents and tables, to a person's terminal."""

from __future__ import annotations

import click
from penstock.agent.ctl.render.text import printable


def say(*lines: str, err: bool = False) -> None:
    """Print lines; what cannot be printed in them is escaped."""
    click.echo("\n".join(map(printable, lines)), err=err)
