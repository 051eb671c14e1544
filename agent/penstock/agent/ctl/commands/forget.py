"""``agentctl forget``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.lazy_group import LazyGroup
from penstock.agent.ctl.options import ENGINE, PEER, author, engine_selector, with_client, with_selector
from penstock.agent.ctl.output import show
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.views import text
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey as Key

_with_reason = click.option("--reason", default="", help="Reason, for the audit log.")


@click.group(cls=LazyGroup)
def forget() -> None:
    """Forget a disconnected engine, or a peer, before --retire-after ends.

    Metrics, lists, alerts and doctor drop it at once; its events and traces stay. If it comes back, its counters
    start at 0.
    """


@forget.command()
@click.argument("engine", type=ENGINE)
@_with_reason
@with_output()
@with_client
def engine(client: Client, engine: Key, reason: str, output: str) -> None:
    """Forget ENGINE, which must not be connected."""
    key = EngineKey(server=engine.server, engine=engine.engine)
    request = admin.ForgetRequest(engine=key, author=author(), reason=reason)
    _report(client.call("Forget", request), f"engine {engine}", output)


@forget.command()
@click.argument("peer", type=PEER)
@with_selector
@_with_reason
@with_output()
@with_client
def peer(client: Client, peer: str, selector: str, reason: str, output: str) -> None:
    """Forget PEER (host:port). No engine may report it as connected, in flight or quarantined."""
    request = admin.ForgetRequest(
        peer=peer, selector=engine_selector(selector), author=author(), reason=reason
    )
    response = client.call("Forget", request)
    where = ", ".join(text.engine(key) for key in response.engines)
    _report(response, f"peer {peer} of engine {where}", output)
    asked = admin.ListPeersRequest(selector=engine_selector(selector), state="all", peers=[peer])
    back = [text.engine(item.key) for item in client.call("ListPeers", asked).peers]
    if back:
        say(
            f"engine {', '.join(back)} still reports it: lists show it again, with counts from 0, until the engine "
            "restarts, or has not tried it for an hour",
            err=True,
        )


def _report(response: admin.ForgetResponse, what: str, output: str) -> None:
    if output == "table":
        say(f"{what} forgotten")
    else:
        show(response, output)
