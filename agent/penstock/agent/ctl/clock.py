"""The present, as a command shows it: the bundle's time where a bundle is read."""

from __future__ import annotations

import time

import click

_META = "penstock.now"


def current_time() -> float:
    """Return seconds since the epoch."""
    context = click.get_current_context(silent=True)
    frozen = None if context is None else context.meta.get(_META)
    return time.time() if frozen is None else float(frozen)


def freeze(context: click.Context, moment: float) -> None:
    """Stop the clock of the command line of *context* at *moment*."""
    # All contexts of a command line share it.
    context.meta[_META] = moment
