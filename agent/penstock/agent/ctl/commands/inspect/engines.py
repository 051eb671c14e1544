"""``agentctl get engines``, ``describe engine``, ``get holders`` and ``debug``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.commands.inspect.engine_document import document, effective_policy, find_engine
from penstock.agent.ctl.errors import FailedError, UsageError
from penstock.agent.ctl.lazy_group import LazyGroup
from penstock.agent.ctl.listing import Listing, ListStyle, nothing_fits, show_listing, with_listing
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import ENGINE, author, engine_selector, with_client, with_selector
from penstock.agent.ctl.output import say_document, show
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.model import EngineKey
from penstock.agent.parsing import no_engine
from penstock.agent.views import text
from penstock.agent.views.engines import condition_line, engine_description, engine_rows
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.snapshot_pb2 import BlockHolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.agent.ctl.connection.client import Client
    from penstock.proto.v1.policy_pb2 import StackDump, ThreadStack

_NO_ENGINE = "no known engines: none has connected, or all were disconnected for longer than --retire-after"

# Seconds for a diagnosis; the rest of the description does without.
_PATIENCE = 5.0

_INDENT = "  "
_NAME = 128


@click.command()
@click.argument("keys", nargs=-1, type=ENGINE, metavar="[ENGINE]...")
@with_selector
@click.option(
    "--state",
    type=click.Choice(["connected", "disconnected", "all"]),
    default="all",
    show_default=True,
    help="Only engines in this state.",
)
@with_listing
@with_client
def engines(client: Client, keys: tuple[EngineKey, ...], selector: str, state: str, style: ListStyle) -> None:
    """List engines, or those that are named: connected, policy in force, deferred requests."""
    if keys and selector:
        raise UsageError("names and --selector exclude each other; give one of them")
    request = admin.ListEnginesRequest(
        selector=engine_selector(selector, keys), state="" if state == "all" else state
    )

    def fetch() -> Listing:
        response = client.call("ListEngines", request)
        return Listing(
            "engine",
            engine_rows(response.engines, current_time()),
            [text.engine(item.key) for item in response.engines],
            lambda: as_json_values(response),
            "engines",
            nothing_fits(selector, _NO_ENGINE if state == "all" else f"no engine is {state}"),
            missing=_missing_engines(client, keys, response.engines),
            single=len(keys) == 1,
        )

    show_listing(fetch, style)


def _missing_engines(client: Client, keys: tuple[EngineKey, ...], found: list[admin.Engine]) -> list[str]:
    there = {EngineKey(item.key.server, item.key.engine) for item in found}
    missing = [key for key in keys if key not in there]
    if not missing:
        return []
    everything = client.call("ListEngines", admin.ListEnginesRequest()).engines
    known = [EngineKey(item.key.server, item.key.engine) for item in everything]
    prefix = "there is no engine {!r}; "
    return [
        f"engine {str(key)!r} not found; {no_engine(key, known).removeprefix(prefix.format(str(key)))}"
        for key in missing
    ]


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


@click.command()
@click.argument("keys", nargs=-1, type=ENGINE, metavar="[ENGINE]...")
@with_selector
@with_listing
@with_client
def holders(client: Client, keys: tuple[EngineKey, ...], selector: str, style: ListStyle) -> None:
    """List who holds KV blocks that no request computes with, by engine, holder and peer.

    Holders are leases, loads under way, aborted loads, pinned blocks and saves.
    """
    if keys and selector:
        raise UsageError("names and --selector exclude each other; give one of them")
    request = admin.ListHoldersRequest(selector=engine_selector(selector, keys))

    def fetch() -> Listing:
        response = client.call("ListHolders", request)
        unknown = ", ".join(text.engine(key) for key in response.unknown)
        return Listing(
            "holder",
            rows(response.holders, current_time()),
            [_name(item) for item in response.holders],
            lambda: as_json_values(response),
            "holders",
            nothing_fits(selector, "no blocks are held"),
            [f"no report from {unknown} now: what is held there is not known"] if unknown else [],
        )

    show_listing(fetch, style)


def rows(items: Iterable[admin.HolderSummary], now: float) -> Table:
    """List holders."""
    return Table(
        ("ENGINE", "HOLDER", "PEER", "REQUESTS", "BLOCKS", "SHARE", "OLDEST", "PEER-ENGINE-ID"),
        [
            (
                text.engine(item.key),
                text.word(BlockHolder, item.holder),
                item.peer.address or "unknown",
                str(item.requests) if item.requests else text.NONE,
                str(item.blocks),
                f"{item.share:.1%}" if item.HasField("share") else text.NONE,
                text.ago_of(item.oldest, now),
                item.peer.engine_id or text.NONE,
            )
            for item in items
        ],
        wide=1,
    )


def _name(item: admin.HolderSummary) -> str:
    return f"{text.engine(item.key)}/{text.word(BlockHolder, item.holder)}/{item.peer.address or 'unknown'}"


@click.group(cls=LazyGroup)
def debug() -> None:
    """Look into a running engine."""


@debug.command()
@click.argument("engine", type=ENGINE)
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_output()
@with_client
def stacks(client: Client, engine: EngineKey, reason: str, output: str) -> None:
    """Show what the threads of ENGINE's EngineCore execute: functions and lines, no values.

    The engine has to be started with PENSTOCK_ALLOW_STACKS=1. The engine answers even while a step hangs, and keeps
    running.
    """
    key = common.EngineKey(server=engine.server, engine=engine.engine)
    request = admin.GetStacksRequest(key=key, author=author(), reason=reason)
    found = client.call("GetStacks", request)
    if output != "table":
        show(found, output)
        return
    for dump in found.processes:
        say(*_lines(dump))


def _lines(dump: StackDump) -> Iterator[str]:
    yield f"{dump.process} (pid {dump.pid}): {text.count(len(dump.threads), 'thread')}"
    for thread in dump.threads:
        yield from _thread(thread)
    if dump.threads_left_out:
        yield f"{text.count(dump.threads_left_out, 'more thread')} not shown"


def _thread(thread: ThreadStack) -> Iterator[str]:
    yield f"{_INDENT}{text.one_line(thread.name, _NAME)}:"
    for frame in thread.frames:
        where = text.one_line(f"{frame.module}.{frame.function}", 2 * _NAME)
        yield f"{2 * _INDENT}{where} ({text.one_line(frame.file, _NAME)}:{frame.line})"
    if thread.frames_left_out:
        yield f"{2 * _INDENT}{text.count(thread.frames_left_out, 'outer frame')} not shown"
