"""``agentctl bill`` and ``what-if``: what failures cost, and what they would have cost under other policies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import click
from penstock.agent.bill import group_lines
from penstock.agent.ctl.commands.inspect.replayed_reflexes import reflex_notes, reflex_table
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.manifest_files import read_paths
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import (
    DURATION,
    duration_message,
    engine_selector,
    with_client,
    with_paths,
    with_selector,
)
from penstock.agent.ctl.output import say_table, show, warn_unreadable
from penstock.agent.ctl.printing import is_table, say, with_output
from penstock.agent.views import text
from penstock.agent.views.bill import bill_table, notes, window_words
from penstock.agent.views.text import duration
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from google.protobuf.duration_pb2 import Duration
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.ctl.manifest_files import ManifestText

_MAX_UINT64 = (1 << 64) - 1
# Seconds; the agent reads at most 6, and a relay waits for many.
_DEADLINE = 30.0


class _Row(NamedTuple):
    """A line of the comparison: its name, and its field of the counts."""

    name: str
    field: str


_ROWS = (
    _Row("remote loads", "loads"),
    _Row("loaded", "loaded"),
    _Row("recomputed", "recomputed"),
    _Row("failed", "failed"),
    _Row("not known", "unknown"),
    _Row("tokens recomputed", "tokens_recomputed"),
    _Row("items encoded again", "items_recomputed"),
    _Row("waits cut by a deadline", "waits_cut"),
    _Row("not tried: peer quarantined", "not_tried"),
    _Row("computed here by a reflex", "by_reflex"),
)


# Without a load of the kind they are left out.
_OPTIONAL = frozenset({"unknown", "items_recomputed", "by_reflex"})


@click.command("what-if")
@with_paths("YAML or JSON file, directory, or - for standard input. May be repeated.", required=False)
@click.option(
    "--only",
    is_flag=True,
    help="Ignore the agent's current policies. Without -f, replay with no policy at all.",
)
@click.option(
    "--reflexes",
    is_flag=True,
    help="Let all reflexes act: as the policies set them, otherwise with their defaults.",
)
@click.option(
    "--since",
    type=DURATION,
    default="1h",
    show_default=True,
    help="Replay the loads of the last 10m, 2h, ...",
)
@with_selector
@with_output()
@with_client
def what_if(
    client: Client,
    paths: tuple[str, ...],
    only: bool,
    reflexes: bool,
    since: timedelta,
    selector: str,
    output: str,
) -> None:
    """Replay the recorded loads against other policies: failures, recomputation, waits, and their cost.

    The policies of the files are added to those of the agent, and replace those of the same name. Without a file the
    present policies are replayed, as if they had been in force all the time. Nothing is changed.
    """
    manifests = read_paths(paths) if paths else []
    request = admin.WhatIfRequest(
        manifests_json=[manifest.text for manifest in manifests],
        only=only,
        reflexes=reflexes,
        since=duration_message(since),
        selector=engine_selector(selector),
    )
    try:
        found: admin.WhatIfResponse = client.call("WhatIf", request, _DEADLINE)
    except UsageError as error:
        raise UsageError(_located(error.message, manifests)) from None
    if output == "table":
        _show(found, selector)
    else:
        show(found, output)


def _located(message: str, manifests: Sequence[ManifestText]) -> str:
    """Return an error about a manifest with its file."""
    named = [each for each in manifests if each.name and repr(each.name) in message] or manifests
    return f"{named[0].where}: {message}" if len(named) == 1 else message


def _show(found: admin.WhatIfResponse, selector: str) -> None:
    warn_unreadable(found.unreadable_batches)
    if found.truncated:
        say(
            f"only the newest {found.entries} entries were replayed; give a shorter --since",
            err=True,
        )
    if not found.engines:
        where = " of the selected engines" if selector else ""
        say(f"no remote load{where} is recorded in that time", err=True)
        return
    was, would = _total(each.was for each in found.engines), _total(each.would for each in found.engines)
    names = sorted({name for engine in found.engines for name in engine.policies})
    say(f"replayed: {', '.join(names) if names else 'no policy'}", "")
    say_table(
        ("", "RECORDED", "REPLAYED"),
        [
            *(
                (row.name, str(getattr(was, row.field)), str(getattr(would, row.field)))
                for row in _ROWS
                if row.field not in _OPTIONAL or getattr(was, row.field) or getattr(would, row.field)
            ),
            ("waited for remote state", duration(was.waited), duration(would.waited)),
        ],
    )
    if len(found.engines) > 1:
        say("")
        say_table(
            ("ENGINE", "LOADS", "RECOMPUTED", "FAILED", "TOKENS", "CUT", "NOT-TRIED", "WAITED"),
            map(_engine_row, found.engines),
        )
    peers = [(engine, peer) for engine in found.engines for peer in engine.peers]
    if peers:
        say("")
        say_table(
            ("QUARANTINED PEER", "ENGINE", "RECORDED", "REPLAYED"),
            [
                (
                    peer.address,
                    text.engine(engine.key),
                    _times(peer.was_times, peer.was),
                    _times(peer.would_times, peer.would),
                )
                for engine, peer in peers
            ],
        )
    if any(engine.reflexes for engine in found.engines):
        table = reflex_table(found.engines)
        say("")
        say_table(table.headers, table.rows)
        say(*reflex_notes(found.engines))
    notes = _notes(found.engines)
    if notes:
        say("", "Of these loads:", *(f"- {number} {said}" for said, number in notes))


def _total(counts: Iterable[admin.WhatIfCounts]) -> admin.WhatIfCounts:
    total, waited = admin.WhatIfCounts(), 0
    for each in counts:
        waited += each.waited.ToNanoseconds()
        for row in _ROWS:
            summed = getattr(total, row.field) + getattr(each, row.field)
            setattr(total, row.field, min(summed, _MAX_UINT64))
    total.waited.FromNanoseconds(min(waited, _MAX_UINT64))
    return total


def _engine_row(engine: admin.WhatIfEngine) -> tuple[str, ...]:
    was, would = engine.was, engine.would
    fields = ("recomputed", "failed", "tokens_recomputed", "waits_cut", "not_tried")
    return (
        text.engine(engine.key),
        str(was.loads),
        *(_change(str(getattr(was, field)), str(getattr(would, field))) for field in fields),
        _change(duration(was.waited), duration(would.waited)),
    )


def _change(was: str, would: str) -> str:
    return was if was == would else f"{was} → {would}"


def _times(times: int, total: Duration) -> str:
    return f"{text.count(times, 'time')}, {duration(total)}" if times else text.NONE


def _notes(engines: Iterable[admin.WhatIfEngine]) -> list[tuple[str, int]]:
    notes: Counter[str] = Counter()
    for engine in engines:
        for note in engine.notes:
            notes[note.text] += note.loads
    return notes.most_common()


@click.command()
@click.option(
    "--since",
    type=DURATION,
    default="24h",
    show_default=True,
    help="Add up the costs of the last 10m, 2h, ...",
)
@click.option(
    "--by",
    type=click.Choice(["peer", "policy", "engine"]),
    default=None,
    help="One line for each of these; the default is a line for each engine, peer and policy.",
)
@with_selector
@with_output(wide=True)
@with_client
def bill(client: Client, since: timedelta, by: str | None, selector: str, output: str) -> None:
    """Add up what failed loads, waits and recomputation cost: tokens, and seconds of prefill and of waits.

    Prefill seconds are the tokens that were computed again, times what a token takes in the same engine in that time;
    they are unknown until enough requests have shown that.
    """
    request = admin.GetBillRequest(since=duration_message(since), selector=engine_selector(selector))
    found: admin.Bill = client.call("GetBill", request, _DEADLINE)
    if by is not None:
        lines = group_lines(found.lines, by)
        del found.lines[:]
        found.lines.extend(lines)
    if not is_table(output):
        show(found, output)
        return
    warn_unreadable(found.unreadable_batches)
    if found.truncated:
        say(
            f"only the newest {found.entries} entries were added up; give a shorter --since",
            err=True,
        )
    window = window_words(found, since.total_seconds(), current_time())
    if not found.lines:
        where = " of the selected engines" if selector else ""
        say(f"no failed load, wait or recomputation{where} is recorded {window}", err=True)
        return
    table = bill_table(found, by)
    shown = table if output == "wide" else table.narrow()
    say_table(shown.headers, shown.rows)
    say("", f"Costs {window}.", *notes(found))
