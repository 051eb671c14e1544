"""``agentctl get map``: who sends state to whom, as a table, as a document, or for Graphviz and Mermaid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.listing import nothing_fits
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import PAIR_SIDE, engine_selector, with_client, with_selector
from penstock.agent.ctl.output import say_document, say_lines
from penstock.agent.ctl.printing import is_table, say, with_output
from penstock.agent.fleet_map import (
    dot_lines,
    edge_rows,
    group_rows,
    grouped,
    left_out_words,
    map_document,
    mermaid_lines,
    whole_map,
)
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.views.tables import Table

_GRAPHS = {"dot": dot_lines, "mermaid": mermaid_lines}


@click.command()
@click.argument("names", nargs=-1, type=PAIR_SIDE, metavar="[ENGINE|PEER]...")
@with_selector
@with_output(wide=True, names=True, more=tuple(_GRAPHS))
@with_client
def fleet_map(client: Client, names: tuple[str, ...], selector: str, output: str) -> None:
    """Show who sends state to whom, the worst first: bytes/s, share failed and speed; or only the edges of ENGINE or PEER.

    Bytes and failures are of the last 15 minutes. More than 12 nodes are grouped by role and pool, with those in trouble
    beside their groups; with names, the map is theirs alone. -o dot is for Graphviz, -o mermaid for Markdown.
    """
    peers = client.call("ListPeers", admin.ListPeersRequest(selector=engine_selector(selector))).peers
    # What a selector leaves out may be the other end of an edge.
    engines = client.call("ListEngines", admin.ListEnginesRequest(without_counters=True)).engines
    pairs = client.call("ListPairs", admin.ListPairsRequest()).engines
    whole = whole_map(engines, peers, pairs, only=names, alone=not selector)
    known = {node.name for node in whole.nodes} | {row.peer.address for row in peers}
    missing = [name for name in names if name not in known]
    if missing:
        raise FailedError(
            "; ".join(f"{name!r} is not on the map; 'agentctl get map' shows all" for name in missing)
        )
    found = grouped(whole)
    if output == "name":
        say(*(f"{'engine' if node.is_engine else 'peer'}/{node.name}" for node in whole.nodes))
        return
    if output in _GRAPHS:
        say(*_GRAPHS[output](found, current_time()))
    elif not is_table(output):
        say_document(map_document(found), output)
        return
    elif found.edges:
        _say_tables(edge_rows(found, current_time()), group_rows(found), output)
    else:
        say(nothing_fits(selector, "nothing moves: no engine here has a peer"), err=True)
    if left_out := left_out_words(found):
        say(left_out, err=True)


def _say_tables(edges: Table, groups: Table, output: str) -> None:
    shown = edges if output == "wide" else edges.narrow()
    say_lines([shown.headers, *shown.rows])
    if groups.rows:
        say("")
        say_lines([groups.headers, *groups.rows])
