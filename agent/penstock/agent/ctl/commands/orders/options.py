"""Options of orders to engines, and the wait until the engines acknowledge one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click
from penstock.agent.ctl.delivery import DEFAULT_TIMEOUT, GRACE, follow_delivery, told
from penstock.agent.ctl.options import DURATION, ENGINE, duration_message, with_selector
from penstock.agent.ctl.printing import with_output
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client

F = TypeVar("F", bound="Callable[..., Any]")

with_engines = click.argument("engines", nargs=-1, type=ENGINE, metavar="[ENGINE]...")
with_timeout = click.option(
    "--timeout", type=DURATION, default=DEFAULT_TIMEOUT, help="Time limit of the wait.  [default: 30s]"
)


def with_order(function: F) -> F:
    """Add ENGINE, ``--selector``, ``--reason``, ``--timeout`` and ``-o``."""
    options = (
        with_engines,
        with_selector,
        click.option("--reason", default="", help="Reason, for the audit log."),
        with_timeout,
        with_output(),
    )
    for option in reversed(options):
        function = option(function)
    return function


def follow_order(
    client: Client,
    selector: admin.EngineSelector,
    timeout: timedelta,
    what: str,
    done: str,
    *,
    quiet: bool,
    ends: bool = False,
) -> admin.Rollout:
    """Wait until the engines have acknowledged an order; print each unless *quiet*.

    With *ends* the order ends something, so a paused engine complies, too.

    Raises:
        FailedError: an engine refused, is paused, or did not answer in time.

    """
    request = admin.WatchRolloutRequest(selector=selector, timeout=duration_message(timeout))
    stream = client.stream("WatchRollout", request, timeout.total_seconds() + GRACE)
    return follow_delivery(told(stream, what), what, quiet=quiet, done=done, ends=ends)
