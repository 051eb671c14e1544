"""``agentctl describe engine``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.commands.inspect.engine_document import document, effective_policy, find_engine
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.name_arguments import ENGINE
from penstock.agent.ctl.options import engine_selector, with_client
from penstock.agent.ctl.printing.console import say
from penstock.agent.ctl.printing.formats import with_output
from penstock.agent.ctl.printing.output import say_document
from penstock.agent.views.engine_description import condition_line, engine_description
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey

# Seconds for a diagnosis; the rest of the description does without.
_PATIENCE = 5.0


@click.command()
@click.argument("key", type=ENGINE, metavar="ENGINE")
@with_output()
@with_client
def engine(client: Client, key: EngineKey, output: str) -> None:
    """Show one engine in full: facts, policy and the source of each field, requests, peers, processes, hooks."""
    item, effective = find_engine(client, key), effective_policy(client, key)
    if output != "table":
        say_document(document(item, effective), output)
        return
    request = admin.ListPeersRequest(selector=engine_selector(engines=[key]))
    peers = client.call("ListPeers", request).peers
    told = _conditions(client, key)
    say(*engine_description(item, effective, list(peers), current_time(), _holders(client, key), told))


def _conditions(client: Client, key: EngineKey) -> list[str] | None:
    """Return what the diagnosis of all engines says of one now; None where it is not known."""
    try:
        diagnosis: admin.Diagnosis = client.call("Diagnose", admin.DiagnoseRequest(), timeout=_PATIENCE)
    except FailedError:
        return None
    now = diagnosis.at.ToNanoseconds() / 1e9
    lasting = [each for each in diagnosis.causes if not each.HasField("until")]
    return [
        condition_line(each, now)
        for cause in lasting
        for each in (cause, *cause.effects)
        if any((found.server, found.engine) == (key.server, key.engine) for found in each.engines)
    ]


def _holders(client: Client, key: EngineKey) -> Sequence[admin.HolderSummary]:
    """Return who holds blocks of an engine; nothing from an agent of an earlier version."""
    request = admin.ListHoldersRequest(selector=engine_selector(engines=[key]))
    try:
        found: Sequence[admin.HolderSummary] = client.call("ListHolders", request).holders
    except FailedError:
        return ()
    return found
