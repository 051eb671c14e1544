"""``agentctl pause`` and ``resume``: the kill switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.commands.orders.options import with_order
from penstock.agent.ctl.delivery import GRACE, follow_delivery, told
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import (
    DURATION,
    author,
    duration_message,
    engine_selector,
    with_client,
)
from penstock.agent.ctl.output import show
from penstock.agent.ctl.printing import say
from penstock.agent.views import text
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey


@click.command()
@with_order
@click.option(
    "--ttl",
    type=DURATION,
    help="Time to live, at most 24h: the pause ends by itself.  [default: until 'agentctl resume']",
)
@with_client
def pause(client: Client, **how: Any) -> None:
    """Make Penstock passive in engines: vLLM's own configuration, no telemetry.

    Without ENGINE or selector: all engines, including those that connect later.
    Lasts until 'agentctl resume' or the end of --ttl, over restarts of engine and agent.
    Returns once every connected process of the engines is passive.
    """
    _set(client, paused=True, **how)


@click.command()
@with_order
@with_client
def resume(client: Client, **how: Any) -> None:
    """Undo a pause. Without ENGINE or selector: all pauses.

    Returns once every connected process of the engines is active again.
    """
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
    ttl: timedelta | None = None,
) -> None:
    request = admin.SetPausedRequest(
        selector=engine_selector(selector, engines),
        paused=paused,
        author=author(),
        reason=reason,
        timeout=duration_message(timeout),
        ttl=None if ttl is None else duration_message(ttl),
    )
    stream = client.stream("SetPaused", request, timeout.total_seconds() + GRACE)
    what, done = ("the pause", "paused") if paused else ("the end of the pause", "no longer paused")
    last = follow_delivery(told(stream, what), what, quiet=output != "table", done=done)
    if output != "table":
        show(last, output)
    elif paused:
        _say_end(last, current_time())


def _say_end(rollout: admin.Rollout, now: float) -> None:
    """Print when the pause ends, engine by engine where they differ."""
    ends: dict[str, list[str]] = {}
    for engine in rollout.engines:
        if not engine.HasField("pause"):
            # It has ended meanwhile.
            continue
        ends.setdefault(text.pause_end(engine.pause, now), []).append(text.engine(engine.key))
    for end, engines in ends.items():
        which = "the pause" if len(ends) == 1 else f"the pause of {', '.join(engines)}"
        say(
            f"{which} lasts {end}" if end.startswith("until") else f"{which} {end}, or with 'agentctl resume'"
        )
