"""Adds the connection options in use to the ``agentctl`` command lines in messages."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from click.core import ParameterSource

if TYPE_CHECKING:
    import click

PROGRAM = "agentctl"
COMMANDS = (
    "apply", "completion", "delete", "describe", "diff", "doctor", "drill", "explain", "export", "forget", "get", "import",
    "inject-fault", "pause", "quarantine", "resume", "rollback", "set-policy", "top", "trace", "watch",
)  # fmt: skip
_META = "penstock.hints"
_OPTIONS = ("address", "tls_ca", "tls_cert", "tls_key", "tls_server_name")
# After -- stands a command for kubectl exec, where the default address is right.
_TYPED = re.compile(rf"(?<!-- )\b{PROGRAM} (?=(?:{'|'.join(COMMANDS)})\b)")


def note_program(context: click.Context, address: str | None) -> str:
    """Return ``agentctl`` with the connection options of the command line, and keep it for :func:`hinted_here`.

    Options from the environment are left out. *address* is the one behind the command.
    """
    root = context.find_root()
    given = {
        name: root.params[name]
        for name in _OPTIONS
        if root.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if address:
        given["address"] = address
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    program = context.meta[_META] = shlex.join([PROGRAM, *words])
    return program


def hinted(text: str, program: str) -> str:
    """Return *text* with *program* for ``agentctl`` in each command line."""
    return _TYPED.sub(lambda _: f"{program} ", text)


def hinted_here(text: str, context: click.Context | None) -> str:
    """Return *text* as :func:`hinted`, with the program of the running command."""
    return text if context is None else hinted(text, context.meta.get(_META, PROGRAM))
