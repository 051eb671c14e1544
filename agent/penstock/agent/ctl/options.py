"""Options that several commands share."""

from __future__ import annotations

import functools
import getpass
import os
import socket
from typing import TYPE_CHECKING, Any, TypeVar

import click
from google.protobuf.duration_pb2 import Duration
from penstock.agent.ctl.command_hints import note_program
from penstock.agent.ctl.connection.bundle_client import open_bundle
from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.connection.endpoint import ContextName, bundle_of, endpoint_of
from penstock.agent.ctl.errors import note_answering
from penstock.agent.ctl.printing import say
from penstock.agent.parsing import parse_duration, parse_labels
from penstock.agent.views import text
from penstock.proto.v1.admin_pb2 import EngineSelector
from penstock.proto.v1.common_pb2 import EngineKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

F = TypeVar("F", bound="Callable[..., Any]")


class Parsed(click.ParamType[Any]):
    """A parameter type made from a parse function; its ValueError is the error text."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse *value*."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _labels(text: str) -> str:
    # As kubectl, -l=role=decode: click takes the sign for a part of the value.
    text = text.removeprefix("=")
    parse_labels(text)
    return text


def _positive(text: str) -> timedelta:
    duration = parse_duration(text)
    if not duration:
        raise ValueError(f"{text!r} is zero; give a duration such as 30s")
    return duration


DURATION = Parsed("DURATION", _positive)
SELECTOR = Parsed("SELECTOR", _labels)
PATH = click.Path(allow_dash=True)


def with_paths(text: str, *, required: bool = True) -> Callable[[F], F]:
    """Add ``-f`` as the argument ``paths``; *text* is its help."""
    return click.option(
        "--filename", "-f", "paths", type=PATH, multiple=True, required=required, metavar="PATH", help=text
    )


with_selector = click.option(
    "--selector",
    "-l",
    type=SELECTOR,
    default="",
    help="Select engines by label: role=decode,tier in (a,b),!canary.",
)


def with_client(function: F) -> F:
    """Add ``--address`` and ``--context``, and pass a :class:`Client` as the first argument."""

    @with_place
    @click.pass_context
    @functools.wraps(function)
    def command(context: click.Context, /, **arguments: Any) -> Any:
        del arguments["address"], arguments["context"], arguments["bundle"]
        client = open_client(context)
        try:
            return function(client, **arguments)
        finally:
            client.close()
            if client.missing:
                say(text.style(client.missing, "yellow"), err=True)

    return command  # type: ignore[return-value]


def with_place(function: F) -> F:
    """Add ``--address``, ``--context`` and ``--bundle`` to a command; the function sees them, and :func:`open_client` reads them."""
    kinds: tuple[tuple[str, str, click.ParamType[Any]], ...] = (
        ("address", "ADDRESS", click.STRING),
        ("context", "NAME", ContextName()),
        ("bundle", "FILE", click.Path(dir_okay=False)),
    )
    for name, metavar, kind in kinds:
        function = click.option(
            f"--{name}", name, type=kind, metavar=metavar, help="Overrides the option before the command."
        )(function)
    return function


def open_client(context: click.Context) -> Client:
    """Return a client of the agent, or of the bundle, that the command line of *context* names."""
    if bundle := bundle_of(context):
        found = open_bundle(context, bundle, note_program(context))
        note_answering(context, f"the bundle {bundle}")
        return found
    endpoint = endpoint_of(context)
    found = Client(endpoint.address, endpoint.tls, note_program(context))
    note_answering(context, f"the agent at {found.address}")
    return found


def engine_selector(
    labels: str = "", engines: Iterable[Any] = (), models: Iterable[str] = ()
) -> EngineSelector:
    """Return a selector message."""
    return EngineSelector(
        labels=labels,
        models=models,
        engines=[EngineKey(server=key.server, engine=key.engine) for key in engines],
    )


def duration_message(value: timedelta) -> Duration:
    """Return a duration message."""
    message = Duration()
    message.FromTimedelta(value)
    return message


def author() -> str:
    """Return the caller for the audit log: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        user = f"uid{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
