"""Arguments that name engines, peers, policies, drills or event kinds, with shell completion from the agent, and what they name."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from click.shell_completion import CompletionItem
from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.connection.endpoint import endpoint_of
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.options import Parsed
from penstock.agent.parsing import parse_key
from penstock.agent.views.peers import peer_name
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    import click

# Shells insert a completion unquoted: a peer's name must not become a command, an option or an escape code.
_TYPEABLE = re.compile(r"[\w\[][\w.:/@%+,=\[\]-]*")
# Seconds.
_DEADLINE = 0.5
_KINDS = tuple(field.name for field in Event.DESCRIPTOR.oneofs_by_name["body"].fields)


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
