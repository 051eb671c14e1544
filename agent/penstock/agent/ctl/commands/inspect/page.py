"""``agentctl page``: the page's address with a token; of a bundle, the page itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.connection.client import open_page
from penstock.agent.ctl.connection.endpoint import bundle_of
from penstock.agent.ctl.errors import FailedError, UsageError, note_program
from penstock.agent.ctl.options import DURATION, author, open_client, with_place
from penstock.agent.ctl.output import show
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.views import text
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client

_MAX_PORT = 65_535
_TURN_SECONDS = 0.5
_ROLES = {"read": admin.PAGE_ROLE_READ, "write": admin.PAGE_ROLE_WRITE}


@click.command()
@click.option("--role", type=click.Choice(tuple(_ROLES)), help="What the link allows.  [default: your role]")
@click.option(
    "--since",
    type=DURATION,
    help="With --bundle: window before the bundle that the verdict covers.  [default: 10m]",
)
@click.option(
    "--port",
    type=click.IntRange(0, _MAX_PORT),
    help="With --bundle: port of 127.0.0.1.  [default: a free one]",
)
@with_output()
@with_place
@click.pass_context
def page(
    context: click.Context,
    /,
    role: str | None,
    since: timedelta | None,
    port: int | None,
    output: str,
    **_: object,
) -> None:
    """Print the address of the page of an agent or of a relay, with a token that says who opens it.

    The token is secret, and valid for 12 hours or until the agent ends. With --bundle: serve the page of the bundle on
    this machine, until interrupted, and print its address.
    """
    path = bundle_of(context)
    if path:
        if role:
            raise UsageError("the page of a bundle only reads, and takes no token; leave out --role")
        _serve(context, path, port or 0, since, output)
    if since is not None or port is not None:
        raise UsageError(
            "--since and --port are of the page of a bundle; give --bundle FILE, or leave them out"
        )
    client = open_client(context)
    try:
        _show_link(client, role, output)
    finally:
        client.close()


def _serve(context: click.Context, path: str, port: int, since: timedelta | None, output: str) -> None:
    """Serve the page of a bundle until interrupted."""
    seconds = None if since is None else since.total_seconds()
    address = open_page(context, path, note_program(context), port=port, since=seconds)
    if output == "table":
        say(address)
    else:
        show(admin.IssuePageTokenResponse(address=address), output)
    while True:
        time.sleep(_TURN_SECONDS)


def _show_link(client: Client, role: str | None, output: str) -> None:
    request = admin.IssuePageTokenRequest(author=author(), page_role=_ROLES.get(role or ""))
    found = client.call("IssuePageToken", request)
    if not found.address:
        raise FailedError(
            f"the agent at {client.address} serves no page; start it with --page 127.0.0.1:9465 (a relay: 9468), or see "
            "its log: where another program has the port, it runs without"
        )
    if output != "table":
        show(found, output)
        return
    link = f"{found.address}#token={found.token}" if found.token else found.address
    say(text.printable(link))
    say(_about(found, role), err=True)


def _about(found: admin.IssuePageTokenResponse, asked: str | None) -> str:
    """Say what the link allows."""
    if not found.token:
        return "this page takes no token: certificates or a proxy name its users; open it by its host's name, or through the proxy"
    life = text.span_of_time(found.life.ToNanoseconds() / 1e9)
    if found.page_role == admin.PAGE_ROLE_WRITE:
        return f"whoever has this link may read and write in your name, for {life}"
    why = "" if asked == "read" else ": that takes a page with --page-write yes, and write access of yours"
    return f"whoever has this link may read, for {life}; it does not write{why}"
