"""``agentctl routers``: the state of endpoints for routers, as a table, or told to routers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import click
from penstock.agent.ctl.connection.client import interrupt_on_signals
from penstock.agent.ctl.connection.endpoint import bundle_of
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.listing import Listing, ListStyle, show_listing, with_listing
from penstock.agent.ctl.options import DURATION, Parsed, with_client
from penstock.agent.ctl.routers.calls import ROUTERS, RouterCalls
from penstock.agent.ctl.routers.endpoints import (
    ApiEndpoint,
    Endpoints,
    parse_endpoint,
    parse_endpoints,
    parse_url,
    state_of,
)
from penstock.agent.ctl.routers.files import (
    FORMATS,
    RouterFile,
    as_json,
    as_list,
    as_production_stack,
    read_text,
)
from penstock.agent.ctl.routers.follow import follow, read_feed
from penstock.agent.ctl.routers.rotation import LONGEST_PAUSE, RotationRules
from penstock.agent.views import text
from penstock.agent.views.router_feed import State
from penstock.agent.views.tables import Table

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.ctl.routers.follow import Receiver
    from penstock.agent.views.router_feed import FeedEndpoint

# Of these nothing is wrong.
_GOOD = ("ok", "unknown")


def _states(given: str) -> frozenset[str]:
    states = [each for each in get_args(State) if each not in _GOOD]
    found = frozenset(each.strip() for each in given.split(","))
    if unknown := found - {*states}:
        raise ValueError(f"{min(unknown)!r} is none of {', '.join(states)}")
    return found


@dataclass(frozen=True, slots=True)
class _Orders:
    """What is to be done beside printing."""

    write: str | None
    format: str | None
    base: str | None
    call: tuple[str, ...]
    router: str | None
    dry_run: bool

    def receivers(self, urls: list[str]) -> list[Receiver]:
        """Return what takes the endpoints out.

        Raises:
            UsageError: there are none, or the file of --base cannot be used.

        """
        if not urls:
            raise UsageError("nobody can be taken out without API addresses: give --endpoint or --endpoints")
        found: list[Receiver] = [
            RouterCalls(router, self.router or ROUTERS[0], dry_run=self.dry_run) for router in self.call
        ]
        if self.write:
            try:
                render = (
                    as_production_stack(urls, read_text(self.base))
                    if self.base
                    else (as_json if self.format == "json" else as_list)(urls)
                )
            except ValueError as error:
                raise UsageError(str(error)) from None
            found.append(RouterFile(self.write, render, dry_run=self.dry_run))
        return found

    def check(self) -> None:
        """Compare the options.

        Raises:
            UsageError: one lacks another.

        """
        if (self.format or self.base) and not self.write:
            raise UsageError("--format and --base are of --write; give it, too")
        if (self.format == FORMATS[-1]) != bool(self.base):
            raise UsageError(f"--format {FORMATS[-1]} and --base belong together; give both")
        if self.write and self.base and os.path.realpath(self.write) == os.path.realpath(self.base):
            raise UsageError(
                "--write would replace the file of --base, which has all backends; give two files"
            )
        if self.router and not self.call:
            raise UsageError("--router is of --call; give it, too")
        if self.dry_run and not (self.write or self.call):
            raise UsageError("--dry-run is of --write and --call; give one of them, too")


@click.command(
    epilog="\b\nagentctl routers --endpoint prefill-0/0=http://10.0.3.4:8000 --endpoint 10.0.3.5=http://10.0.3.5:8000 "
    "--call http://127.0.0.1:30000"
)
@click.option(
    "--endpoint",
    "given",
    type=Parsed("SOURCE=URL", parse_endpoint),
    multiple=True,
    help="The API of a source: of an engine, of host:port or of a host.",
)
@click.option(
    "--endpoints",
    "file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The same from a file: lines of SOURCE URL [POOL].",
)
@click.option(
    "--write",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Follow, and replace FILE when others are in.",
)
@click.option("--format", type=click.Choice(FORMATS), help="What --write writes.  [default: list]")
@click.option(
    "--base",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="With --format production-stack: the configuration with all backends, in JSON.",
)
@click.option(
    "--call",
    type=Parsed("URL", parse_url),
    multiple=True,
    help="Follow, and take endpoints out of this router and back in.",
)
@click.option("--router", type=click.Choice(ROUTERS), help="What --call calls.  [default: vllm-router]")
@click.option(
    "--avoid",
    type=Parsed("STATE,...", _states),
    default="unreachable",
    show_default=True,
    help="States that take an endpoint out.",
)
@click.option(
    "--after",
    type=DURATION,
    default="10s",
    show_default=True,
    help="Take one out once it is bad for this long.",
)
@click.option(
    "--pause",
    type=DURATION,
    default="30s",
    show_default=True,
    help="Then try it again, bad or not; each time after twice as long, up to 10m.",
)
@click.option(
    "--min-ready",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Endpoints of each pool that stay in; where fewer would, none goes out. Those without a POOL are one pool.",
)
@click.option(
    "--lost",
    type=DURATION,
    default="30s",
    show_default=True,
    help="Put all back when the state is not known for this long.",
)
@click.option("--dry-run", is_flag=True, help="With --write and --call: only say what would be done.")
@with_listing
@with_client
def routers(
    client: Client,
    given: tuple[ApiEndpoint, ...],
    file: str | None,
    avoid: frozenset[str],
    after: timedelta,
    pause: timedelta,
    min_ready: int,
    lost: timedelta,
    style: ListStyle,
    **orders: Any,
) -> None:
    """Show the state of endpoints as the feed for routers has it, or keep routers as it says.

    Without --write and --call it prints a table. With them it runs until it is ended, and then puts all back. What is
    not known takes nobody out.
    """
    context = click.get_current_context()
    if bundle_of(context):
        raise UsageError("routers follow a running agent, which a bundle has not; leave out --bundle")
    endpoints = _endpoints(given, file)
    todo = _Orders(**orders)
    todo.check()
    if not (todo.write or todo.call):
        show_listing(lambda: _listing(read_feed(client).endpoints, endpoints), style)
        return
    if style.watch or not style.is_table:
        raise UsageError("-o and --watch are of the table; leave them out with --write and --call")
    receivers = todo.receivers(list(endpoints.pools))
    rules = RotationRules(
        avoid, after.total_seconds(), pause.total_seconds(), lost.total_seconds(), min_ready
    )
    if rules.pause > LONGEST_PAUSE:
        raise UsageError("--pause is 10m at most: that is what it grows to")
    interrupt_on_signals(context)
    follow(client, endpoints, rules, receivers)


def _endpoints(given: tuple[ApiEndpoint, ...], file: str | None) -> Endpoints:
    try:
        return Endpoints([*given, *(parse_endpoints(read_text(file)) if file else ())])
    except ValueError as error:
        raise UsageError(f"--endpoints {file}: {error}" if file else str(error)) from None


def _listing(feed: list[FeedEndpoint], endpoints: Endpoints) -> Listing:
    return Listing(
        "endpoint",
        _table(feed, endpoints),
        [each.source.address or text.NONE for each in feed],
        lambda: {"endpoints": [_document(each, endpoints) for each in feed]},
        "endpoints",
        "no known peers",
    )


def _table(feed: list[FeedEndpoint], endpoints: Endpoints) -> Table:
    rows: list[tuple[str, ...]] = []
    for each in feed:
        source, state = each.source, each.state
        rows.append(
            (
                source.address or text.NONE,
                source.engine or text.NONE,
                state if state in _GOOD else text.style(state, "red"),
                f"{each.agree}/{each.read_lately}" if each.read_lately else text.NONE,
                endpoints.url(each) or text.NONE,
                text.one_line(state_of(each).why) or text.NONE,
            )
        )
    return Table(("ADDRESS", "ENGINE", "STATE", "VOTES", "URL", "WHY"), rows)


def _document(each: FeedEndpoint, endpoints: Endpoints) -> dict[str, Any]:
    source = each.source
    return {
        "source": {"engine": source.engine, "address": source.address},
        "state": each.state,
        "agree": each.agree,
        "readLately": each.read_lately,
        "since": state_of(each).since,
        "why": state_of(each).why,
        "url": endpoints.url(each),
    }
