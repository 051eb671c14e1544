"""``agentctl trace`` and ``explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.console import say
from penstock.agent.ctl.formats import with_output
from penstock.agent.ctl.options import with_client
from penstock.agent.ctl.output import show, warn_unreadable
from penstock.agent.views.span_tree import tree_lines
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client


@click.command()
@click.argument("request_id")
@with_output()
@with_client
def trace(client: Client, request_id: str, output: str) -> None:
    """Show the spans of one request as a tree.

    REQUEST_ID is vLLM's id, the client's, a unique prefix of either, or a trace id.
    """
    found = client.call("GetTrace", admin.GetTraceRequest(request_id=request_id))
    if output == "table":
        say(*tree_lines(found))
        warn_unreadable(found.unreadable_batches)
    else:
        show(found, output)


@click.command()
@click.argument("request_id")
@with_output()
@with_client
def explain(client: Client, request_id: str, output: str) -> None:
    """Explain in one sentence what happened to a request: peer, cause, action, cost.

    REQUEST_ID is vLLM's id, the client's, a unique prefix of either, or a trace id.
    """
    found = client.call("Explain", admin.GetTraceRequest(request_id=request_id))
    if output == "table":
        say(*found.sentences)
        warn_unreadable(found.unreadable_batches)
    else:
        show(found, output)
