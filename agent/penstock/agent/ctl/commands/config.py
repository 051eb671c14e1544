"""``agentctl config``: the contexts of the contexts file."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.connection.contexts import (
    Contexts,
    Endpoint,
    check_address,
    contexts_path,
    find_context,
    read_contexts,
    write_contexts,
)
from penstock.agent.ctl.connection.endpoint import CONTEXT, ContextName
from penstock.agent.ctl.errors import FailedError, UsageError
from penstock.agent.ctl.lazy_group import LazyGroup
from penstock.agent.ctl.output import say_document, say_lines
from penstock.agent.ctl.printing import is_table, say, with_output
from penstock.agent.views import text

if TYPE_CHECKING:
    from pathlib import Path


@click.group(cls=LazyGroup)
def config() -> None:
    """Contexts: named addresses of agents, in a file.

    The file is ~/.config/penstock/contexts.yaml, or that of PENSTOCK_CONTEXTS.
    """


@config.command("get-contexts")
@with_output()
@click.option("--no-headers", is_flag=True, help="Omit the headers of the table.")
def get_contexts(output: str, no_headers: bool) -> None:
    """List the contexts; * marks the current one."""
    contexts = read_contexts(contexts_path())
    if not is_table(output):
        items = [
            {"name": name, **{_camel(key): value for key, value in item.document().items()}}
            for name, item in sorted(contexts.endpoints.items())
        ]
        say_document({"currentContext": contexts.current, "items": items}, output)
        return
    if not contexts.endpoints:
        say("no contexts; 'agentctl config set-context NAME --address ADDRESS' adds one", err=True)
        return
    rows = [
        (
            "*" if name == contexts.current else "",
            name,
            item.address or text.NONE,
            item.tls.ca or text.NONE,
            item.tls.cert or text.NONE,
        )
        for name, item in sorted(contexts.endpoints.items())
    ]
    head = [] if no_headers else [("CURRENT", "NAME", "ADDRESS", "TLS-CA", "TLS-CERT")]
    say_lines([*head, *rows])


@config.command("current-context")
def current_context() -> None:
    """Print the current context."""
    contexts = read_contexts(contexts_path())
    if not contexts.current:
        raise FailedError("there is no current context; 'agentctl config use-context NAME' sets one")
    say(contexts.current)


@config.command("use-context")
@click.argument("name", type=ContextName())
def use_context(name: str) -> None:
    """Make NAME the current context."""
    path, contexts = _contexts_with(name)
    write_contexts(path, replace(contexts, current=name))
    say(f"switched to context {name}")


@config.command("set-context")
@click.argument("name", type=ContextName())
@click.option("--address", metavar="ADDRESS", help="The agent's admin socket, or host:port.")
@click.option("--tls-ca", metavar="FILE", help="CA bundle for the agent's certificate.")
@click.option("--tls-cert", metavar="FILE", help="The client certificate.")
@click.option("--tls-key", metavar="FILE", help="The key of the client certificate; the file's path is kept.")
@click.option("--tls-server-name", metavar="NAME", help="Name in the agent's certificate.")
def set_context(name: str, address: str | None, **tls: str | None) -> None:
    """Add context NAME, or change the fields that are given; an empty value removes a field."""
    given = {key.removeprefix("tls_"): value for key, value in tls.items() if value is not None}
    for key in given.keys() & {"ca", "cert", "key"}:
        given[key] = given[key] and os.path.abspath(given[key])  # noqa: PTH100  (resolve() would follow links)
    if address is None and not given:
        raise UsageError("nothing to set; give --address or a --tls option")
    if not CONTEXT.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a context; use letters, digits and . : @ / -")
    if address:
        check_address(address)
    path = contexts_path()
    contexts = read_contexts(path)
    before = contexts.endpoints.get(name)
    old = before or Endpoint()
    new = Endpoint(old.address if address is None else address, replace(old.tls, **given))
    write_contexts(path, Contexts(contexts.current, {**contexts.endpoints, name: new}))
    say(f"context {name} {'created' if before is None else 'modified'}")


@config.command("delete-context")
@click.argument("name", type=ContextName())
def delete_context(name: str) -> None:
    """Delete context NAME."""
    path, contexts = _contexts_with(name)
    left = {key: item for key, item in contexts.endpoints.items() if key != name}
    write_contexts(path, Contexts("" if contexts.current == name else contexts.current, left))
    say(f"context {name} deleted from {path}")


def _contexts_with(name: str) -> tuple[Path | None, Contexts]:
    """Return the contexts file's path and content.

    Raises:
        UsageError: the file has no context *name*, or cannot be read.

    """
    path = contexts_path()
    contexts = read_contexts(path)
    find_context(contexts, name, path)
    return path, contexts


def _camel(key: str) -> str:
    first, *rest = key.split("-")
    return first + "".join(map(str.capitalize, rest))
