"""The agent that a command line names: flags, environment and contexts file, in this order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from penstock.agent.ctl.connection.contexts import (
    DEFAULT_ADDRESS,
    FILE_VARIABLE,
    ClientTls,
    Contexts,
    Endpoint,
    contexts_path,
    find_context,
    merge,
    read_contexts,
)
from penstock.agent.ctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

CONTEXT = re.compile(r"\w[\w.:@/-]{0,252}")
"""The names that a context may be given."""

_VARIABLE = "AGENTCTL_ADDRESS"
_CONTEXT_VARIABLE = "PENSTOCK_CONTEXT"
_AGENTS = ("address", "context", "bundle")
_TLS = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")


class ContextName(click.ParamType[str]):
    """The name of a context, with shell completion."""

    name = "NAME"

    def shell_complete(
        self, _: click.Context, __: click.Parameter, incomplete: str
    ) -> list[CompletionItem[Any]]:
        """Return the contexts that begin with *incomplete* and need no quoting; none if the file cannot be read."""
        try:
            names = sorted(read_contexts(contexts_path()).endpoints)
        except UsageError:
            return []
        return [
            CompletionItem(name) for name in names if name.startswith(incomplete) and CONTEXT.fullmatch(name)
        ]


def with_connection(function: F) -> F:
    """Add ``--context``, ``--address`` and the options of TLS to the outermost group; see :func:`endpoint_of`."""
    options = (
        click.option(
            "--context",
            type=ContextName(),
            envvar=_CONTEXT_VARIABLE,
            show_envvar=True,
            metavar="NAME",
            help=f"Context of the contexts file ({FILE_VARIABLE} names another file); see 'agentctl config'.",
        ),
        click.option(
            "--address",
            envvar=_VARIABLE,
            show_envvar=True,
            metavar="ADDRESS",
            help="The agent's admin socket, or host:port with the --tls options.  "
            f"[default: that of the context, else {DEFAULT_ADDRESS}]",
        ),
        _with_tls,
        click.option(
            "--bundle",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Read from a file that 'agentctl bundle' wrote, instead of an agent.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _with_tls(function: F) -> F:
    """Add ``--tls-ca``, ``--tls-cert``, ``--tls-key`` and ``--tls-server-name``."""
    options = (
        _option("ca", "FILE", "With a TCP address: CA bundle for the agent's certificate."),
        _option("cert", "FILE", "With a TCP address: the client certificate."),
        _option("key", "FILE", "With a TCP address: the key of the client certificate."),
        _option(
            "server-name", "NAME", "Name in the agent's certificate, if it differs from the address's host."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _option(name: str, metavar: str, text: str) -> Callable[[F], F]:
    variable = f"AGENTCTL_TLS_{name.upper().replace('-', '_')}"
    return click.option(
        f"--tls-{name}", default="", metavar=metavar, envvar=variable, show_envvar=True, help=text
    )


def bundle_of(context: click.Context) -> str:
    """Return the file that is read instead of an agent; empty for none.

    Raises:
        UsageError: the command line names an agent as well.

    """
    root = context.find_root()
    # An option behind the command overrides those before it.
    of_command = {name: context.params.get(name) for name in _AGENTS} if context is not root else {}
    of_root = {
        name: root.params.get(name)
        for name in _AGENTS
        if root.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    given = next((each for each in (of_command, of_root) if any(each.values())), {})
    bundle = given.get("bundle") or ""
    named = [name for name in ("address", "context") if given.get(name)]
    if bundle and named:
        raise UsageError(f"--bundle reads a file and --{named[0]} names an agent; give one of them")
    return str(bundle)


def endpoint_of(context: click.Context) -> Endpoint:
    """Return the agent of the command that runs or is completed in *context*.

    Raises:
        UsageError: the contexts file cannot be read, or lacks the context that is named.

    """
    root = context.find_root()
    flags = _given(root, ParameterSource.COMMANDLINE)
    if address := context.params.get("address"):
        flags = Endpoint(address, flags.tls)
    environment = _given(root, ParameterSource.ENVIRONMENT)
    name = context.params.get("context") or root.params.get("context")
    source = root.get_parameter_source("context")
    named = bool(context.params.get("context")) or (bool(name) and source is ParameterSource.COMMANDLINE)
    if not name and (flags.address or environment.address).startswith(("unix:", "/")):
        # A sidecar has no contexts file to read.
        return merge(flags, environment, Endpoint(), named=False)
    path = contexts_path()
    contexts: Contexts = read_contexts(path)
    name = name or contexts.current
    chosen = find_context(contexts, name, path) if name else Endpoint()
    return merge(flags, environment, chosen, named=named)


def _given(root: click.Context, source: ParameterSource) -> Endpoint:
    """Return what *source* gives of the connection options."""

    def value(name: str) -> str:
        return root.params.get(name) or "" if root.get_parameter_source(name) is source else ""

    return Endpoint(value("address"), ClientTls(*map(value, _TLS)))
