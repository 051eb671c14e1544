"""Prints escaped lines to the terminal."""

from __future__ import annotations

import click
from penstock.agent.views.text import printable


def say(*lines: str, err: bool = False) -> None:
    """Print lines, escaped by :func:`printable`."""
    click.echo("\n".join(map(printable, lines)), err=err)
