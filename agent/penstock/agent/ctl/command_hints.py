"""Adds the connection options in use to the ``agentctl`` command lines in messages."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from click.core import ParameterSource

if TYPE_CHECKING:
    import click

PROGRAM = "agentctl"
PLUGIN = "kubectl penstock"
PROGRAMS = (PROGRAM, PLUGIN)
COMMANDS = (
    "apply", "bill", "bundle", "completion", "config", "debug", "delete", "describe", "diagnose", "diff", "doctor", "drill", "edit", "explain", "export", "forget",
    "get", "import", "inject-fault", "page", "pause", "quarantine", "resume", "rollback", "rollout", "set-policy", "top", "trace", "version",
    "watch", "what-if",
)  # fmt: skip
_META = "penstock.hints"
_OPTIONS = ("bundle", "context", "address", "tls_ca", "tls_cert", "tls_key", "tls_server_name")
# After -- stands a command for kubectl exec, where the default address is right.
_TYPED = re.compile(rf"(?<!-- )\b{PROGRAM} (?=(?:{'|'.join(COMMANDS)})\b)")
# What a bundle refuses, as it changes or asks the live agent: a hint for a bundle leaves it to the default address.
_LIVE = re.compile(
    r"(?:apply|debug|delete|drill stop|edit|forget|import|inject-fault|pause|quarantine (?:add|lift)|resume|rollback"
    r"|rollout (?:start|pause|resume|abort|promote)|set-policy|watch)\b"
)
_OF_BUNDLE = f"{PROGRAM} --bundle "


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


def hinted(text: str, program: str) -> str:
    """Return *text* with *program* for ``agentctl`` in each command line."""

    def replaced(typed: re.Match[str]) -> str:
        live = program.startswith(_OF_BUNDLE) and _LIVE.match(text, typed.end())
        return typed[0] if live else f"{program} "

    return _TYPED.sub(replaced, text)


def hinted_here(text: str, context: click.Context | None) -> str:
    """Return *text* as :func:`hinted`, with the program of the running command."""
    return text if context is None else hinted(text, context.meta.get(_META, PROGRAM))
