"""Adds the connection options in use to the ``agentctl`` command lines in messages."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from click.core import ParameterSource
from penstock.agent.views.command_lines import PROGRAM, PROGRAMS, hinted

if TYPE_CHECKING:
    import click

_META = "penstock.hints"
_OPTIONS = ("bundle", "context", "address", "tls_ca", "tls_cert", "tls_key", "tls_server_name")


def note_program(context: click.Context) -> str:
    """Return the program with the connection options of the command line, and keep it for :func:`hinted_here`.

    Options from the environment are left out; those behind the command count before those in front of it.
    """
    root = context.find_root()
    given = {
        name: root.params[name]
        for name in _OPTIONS
        if root.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if context is not root:
        given |= {
            name: context.params[name]
            for name in ("bundle", "context", "address")
            if context.params.get(name)
        }
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    name = root.info_name if root.info_name in PROGRAMS else PROGRAM
    program = context.meta[_META] = " ".join([name, *map(shlex.quote, words)])
    return program


def hinted_here(text: str, context: click.Context | None) -> str:
    """Return *text* as :func:`hinted`, with the program of the running command."""
    return text if context is None else hinted(text, context.meta.get(_META, PROGRAM))
