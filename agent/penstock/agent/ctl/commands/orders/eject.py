"""``agentctl eject``: take a server out of rotation for a time."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.errors import FailedError, UsageError
from penstock.agent.ctl.options import (
    DURATION,
    ENGINE,
    author,
    duration_message,
    engine_selector,
    with_client,
    with_selector,
)
from penstock.agent.ctl.output import show
from penstock.agent.ctl.printing import is_table, say, with_output
from penstock.agent.parsing import format_duration
from penstock.agent.views import text
from penstock.agent.views.orders import emptied_pools
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey

_OFF = "off"
_POLL_SECONDS = 0.2


class LateError(FailedError):
    """An order stands, and front ends have not said in time that they follow it."""


@click.command(
    epilog="\b\nagentctl eject prefill/0 --for 10m --reason INC-42\nagentctl eject off [ENGINE]..."
)
@click.argument("words", nargs=-1, metavar="[off] [ENGINE]...")
@with_selector
@click.option("--for", "ttl", type=DURATION, help="How long, at most 24h.  [default: 10m]")
@click.option("--reason", default="", help="Reason, for the audit log and who looks at the engine.")
@click.option(
    "--timeout", type=DURATION, default="10s", show_default=True, help="Wait so long for the front ends."
)
@click.option("--even-last", is_flag=True, help="Also the last server of a role and model in rotation.")
@with_output()
@with_client
def eject(
    client: Client,
    words: tuple[str, ...],
    selector: str,
    ttl: timedelta | None,
    reason: str,
    timeout: timedelta,
    even_last: bool,
    output: str,
) -> None:
    """Take the servers of ENGINEs out of rotation: GET /health?penstock=ready answers 503 there.

    Routers and probes that ask this path stop sending requests; the plain /health, and requests that come all the
    same, are served as before. It ends after --for, with 'agentctl eject off', or a minute after the agent is gone.
    """
    ends = words[:1] == (_OFF,)
    keys: Sequence[EngineKey] = [ENGINE.convert(word, None, None) for word in words[ends:]]
    if not ends and not keys and not selector:
        raise UsageError("name the engines, or select them; 'agentctl eject off' ends all such orders")
    if ends and ttl is not None:
        raise UsageError("--for is of a new order; leave it out")
    if even_last and ends:
        raise UsageError("--even-last is of a new order; leave it out")
    if not ends and not even_last:
        _check_pools(client, engine_selector(selector, keys))
    lasts = None if ends else ttl or timedelta(minutes=10)
    response = order_ejection(client, keys, selector, lasts, reason, timeout, tell=is_table(output))
    if not is_table(output):
        show(response, output)


def _check_pools(client: Client, selector: admin.EngineSelector) -> None:
    """Check that a server of each pool stays in rotation, as far as this agent or relay knows the pools.

    Raises:
        FailedError: none would.

    """
    request = admin.ListEnginesRequest(state="connected", without_counters=True)
    known = client.call("ListEngines", request).engines
    request.selector.CopyFrom(selector)
    servers = {each.key.server for each in client.call("ListEngines", request).engines}
    if emptied := emptied_pools(known, servers):
        raise FailedError(
            f"no {', no '.join(emptied)} would be left in rotation; nothing is ordered. --even-last orders it all the same"
        )


def order_ejection(
    client: Client,
    keys: Sequence[EngineKey],
    selector: str,
    ttl: timedelta | None,
    reason: str,
    timeout: timedelta,
    *,
    tell: bool,
) -> admin.SetEjectionResponse:
    """Order engines out of rotation for *ttl*, or back with None; wait until their front ends say so, and *tell* it.

    Raises:
        LateError: they do not within *timeout*; the order stands.

    """
    request = admin.SetEjectionRequest(
        selector=engine_selector(selector, keys),
        ttl=None if ttl is None else duration_message(ttl),
        author=author(),
        reason=reason,
    )
    response: admin.SetEjectionResponse = client.call("SetEjection", request)
    if tell and ttl is None and not response.engines:
        say("no order is in force there: nothing to end")
        return response
    late = _wait(client, response, timeout.total_seconds(), ejects=ttl is not None)
    if tell and not late:
        names = ", ".join(map(text.engine, response.engines))
        one = len(response.engines) == 1
        subject = f"engine {names} is" if one else f"engines {names} are"
        say(
            f"{subject} back in rotation"
            if ttl is None
            else f"{subject} out of rotation for {format_duration(ttl)}"
        )
    if late:
        what = "back in" if ttl is None else "out of"
        raise LateError(
            f"the front end of engine {', '.join(late)} did not say within {format_duration(timeout)} that it is {what} "
            "rotation; the order stands. One that has served no request and no probe yet is not connected"
        )
    return response


def _wait(client: Client, response: admin.SetEjectionResponse, seconds: float, *, ejects: bool) -> list[str]:
    """Return the connected engines whose front ends have not said in time that they follow."""
    selector = admin.EngineSelector(engines=response.engines)
    request = admin.ListEnginesRequest(selector=selector, state="connected", without_counters=True)
    deadline = time.monotonic() + seconds
    while True:
        found = client.call("ListEngines", request).engines if response.engines else []
        late = [text.engine(each.key) for each in found if _is_late(each, ejects=ejects)]
        if not late or time.monotonic() >= deadline:
            return late
        time.sleep(_POLL_SECONDS)


def _is_late(engine: admin.Engine, *, ejects: bool) -> bool:
    return not engine.ejection.in_force if ejects else engine.HasField("ejection")
