"""How a command ends: 0 it worked, 1 it failed or there is no such thing, 2 it was asked wrongly."""

from __future__ import annotations

import click


class FailedError(click.ClickException):
    """It could not be done; exit code 1."""

    exit_code = 1


class UnreachableError(FailedError):
    """No agent answers, or it has hung up: it may come back."""


class RefusedError(FailedError):
    """The agent has answered, and it says no."""


class UsageError(click.ClickException):
    """It was asked wrongly; exit code 2."""

    exit_code = 2
