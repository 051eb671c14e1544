"""Options and arguments that several commands share, with shell completion of names from the agent."""

from __future__ import annotations

import functools
import getpass
import os
import re
import socket
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem
from google.protobuf.duration_pb2 import Duration
from penstock.agent.ctl.connection.client import Client, open_bundle
from penstock.agent.ctl.connection.endpoint import ContextName, bundle_of, endpoint_of
from penstock.agent.ctl.errors import FailedError, note_answering, note_program
from penstock.agent.ctl.printing import say
from penstock.agent.parsing import parse_duration, parse_key, parse_labels
from penstock.agent.views import text
from penstock.agent.views.peers import peer_name
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2 import EngineSelector
from penstock.proto.v1.common_pb2 import EngineKey
from penstock.proto.v1.events_pb2 import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from datetime import timedelta


F = TypeVar("F", bound="Callable[..., Any]")

# Shells insert a completion unquoted: a peer's name must not become a command, an option or an escape code.
_TYPEABLE = re.compile(r"[\w\[][\w.:/@%+,=\[\]-]*")
# Seconds.
_DEADLINE = 0.5
_KINDS = tuple(field.name for field in Event.DESCRIPTOR.oneofs_by_name["body"].fields)


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


class Named(Parsed):
    """A parameter type whose values the agent lists."""

    def __init__(
        self, name: str, names: Callable[[Client], Iterable[str]], parse: Callable[[str], Any] = str
    ) -> None:
        super().__init__(name, parse)
        self._names = names

    def shell_complete(
        self, ctx: click.Context, _: click.Parameter, incomplete: str
    ) -> list[CompletionItem[Any]]:
        """Return the names that begin with *incomplete* and need no quoting; none if the agent does not answer in time."""
        with suppress(Exception), closing(_client(ctx)) as client:
            names = sorted(set(self._names(client)))
            return [
                CompletionItem(name)
                for name in names
                if name.startswith(incomplete) and _TYPEABLE.fullmatch(name)
            ]
        return []


def _client(ctx: click.Context) -> Client:
    """Connect as the command would."""
    endpoint = endpoint_of(ctx)
    return Client(endpoint.address, endpoint.tls)


def _engines(client: Client) -> Iterable[str]:
    response = client.call("ListEngines", admin.ListEnginesRequest(), timeout=_DEADLINE)
    return [
        f"{item.key.server}/{item.key.engine}" if item.key.server else item.key.engine
        for item in response.engines
    ]


def _peers(client: Client) -> Iterable[str]:
    response = client.call("ListPeers", admin.ListPeersRequest(state="all"), timeout=_DEADLINE)
    return [item.peer.address for item in response.peers]


def _pair_sides(client: Client) -> Iterable[str]:
    return [*_engines(client), *_peers(client)]


def _policies(client: Client) -> Iterable[str]:
    response = client.call("ListPolicies", admin.ListPoliciesRequest(), timeout=_DEADLINE)
    return [item.name for item in response.policies]


def _drills(client: Client) -> Iterable[str]:
    response = client.call("ListDrills", admin.ListDrillsRequest(), timeout=_DEADLINE)
    return [item.id for item in response.drills]


ENGINE = Named("ENGINE", _engines, parse_key)


PEER = Named("PEER", _peers)


PAIR_SIDE = Named("ENGINE|PEER", _pair_sides)


POLICY = Named("NAME", _policies)


DRILL = Named("ID", _drills)


KIND = Named("KIND", lambda _: _KINDS)


def fetch_policy(client: Client, name: str) -> admin.Policy:
    """Return policy *name*.

    Raises:
        FailedError: the call fails, or the agents of a relay have several policies of that name.

    """
    found = client.call("ListPolicies", admin.ListPoliciesRequest(name=name)).policies
    if len(found) != 1:
        raise FailedError(
            f"the agents of this relay have {len(found)} different policies of the name {name!r}; "
            "'agentctl get policy' lists them, --address names one agent"
        )
    policy: admin.Policy = found[0]
    return policy


def peers_request(names: Collection[str], **fields: Any) -> admin.ListPeersRequest:
    """Return the question for peers of these *names*; none asks for all, and so does one that may be an engine's.

    Agents look for addresses only: pick with :func:`is_named` from what they answer.
    """
    asked = names if all(":" in name for name in names) else ()
    return admin.ListPeersRequest(peers=asked, **fields)


def is_named(item: admin.PeerSummary, names: Collection[str]) -> bool:
    """Return whether a peer goes by one of *names*."""
    return item.peer.address in names or peer_name(item) in names
