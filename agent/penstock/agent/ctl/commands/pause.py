"""``agentctl pause`` and ``resume``: the kill switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.commands.rollout_progress import DEFAULT_TIMEOUT, GRACE, follow_rollout
from penstock.agent.ctl.formats import with_output
from penstock.agent.ctl.name_arguments import ENGINE
from penstock.agent.ctl.options import (
    DURATION,
    author,
    duration_message,
    engine_selector,
    with_client,
    with_selector,
)
from penstock.agent.ctl.render.output import show
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from penstock.agent.ctl.client import Client
    from penstock.agent.model import EngineKey


def _with_targets(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.argument("engines", nargs=-1, type=ENGINE, metavar="[ENGINE]..."),
        with_selector,
        click.option("--reason", default="", help="Reason, for the audit log."),
        click.option(
            "--timeout",
            type=DURATION,
            default=DEFAULT_TIMEOUT,
            help="Time limit of the wait.  [default: 30s]",
        ),
        with_output(),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@_with_targets
@with_client
def pause(client: Client, **how: Any) -> None:
    """Make Penstock passive in engines: vLLM's own configuration, no telemetry.

    Without ENGINE or selector: all engines, including those that connect later.
    Lasts until 'agentctl resume', over restarts of engine and agent.
    """
    _set(client, paused=True, **how)


@click.command()
@_with_targets
@with_client
def resume(client: Client, **how: Any) -> None:
    """Undo a pause. Without ENGINE or selector: all pauses."""
    _set(client, paused=False, **how)


def _set(
    client: Client,
    *,
    paused: bool,
    engines: tuple[EngineKey, ...],
    selector: str,
    reason: str,
    timeout: timedelta,
    output: str,
) -> None:
    request = admin.SetPausedRequest(
        selector=engine_selector(selector, engines),
        paused=paused,
        author=author(),
        reason=reason,
        timeout=duration_message(timeout),
    )
    stream = client.stream("SetPaused", request, timeout.total_seconds() + GRACE)
    what, done = ("the pause", "paused") if paused else ("the end of the pause", "no longer paused")
    last = follow_rollout(stream, what, quiet=output != "table", done=done)
    if output != "table":
        show(last, output)
