"""``agentctl diagnose``: what is wrong, the most harmful first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.formats import with_output
from penstock.agent.ctl.name_arguments import ENGINE
from penstock.agent.ctl.options import DURATION, duration_message, engine_selector, with_client, with_selector
from penstock.agent.ctl.render import say
from penstock.agent.ctl.render.diagnosis import diagnosis_lines
from penstock.agent.ctl.render.output import show
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.client import Client

_PATIENCE = 15.0
_CODES = {
    admin.DIAGNOSIS_VERDICT_NOTHING_WRONG: 0,
    admin.DIAGNOSIS_VERDICT_CAUSES: 1,
    admin.DIAGNOSIS_VERDICT_CANNOT_TELL: 3,
}


class DiagnosisError(FailedError):
    """No diagnosis was made; exit code 4, as 1 says that there is a cause."""

    exit_code = 4


@click.command()
@click.argument("engines", nargs=-1, type=ENGINE, metavar="[ENGINE]...")
@with_selector
@click.option("--since", type=DURATION, help="Window to diagnose, up to now.  [default: 10m]")
@click.option("--baseline", type=DURATION, help="Window before it to compare with.  [default: 1h]")
@with_output()
@with_client
def diagnose(
    client: Client,
    engines: tuple[object, ...],
    selector: str,
    since: timedelta | None,
    baseline: timedelta | None,
    output: str,
) -> int:
    """Say what is wrong, the most harmful first: evidence, what else it could be, and what to run next.

    Compares the last 10 minutes with the hour before. Exits with 0 if nothing is wrong, 1 if a cause was found, 3 if the
    log does not show which, and 4 if no answer came.
    """
    request = admin.DiagnoseRequest(selector=engine_selector(selector, engines))
    if since is not None:
        request.since.CopyFrom(duration_message(since))
    if baseline is not None:
        request.baseline.CopyFrom(duration_message(baseline))
    try:
        diagnosis = client.call("Diagnose", request, timeout=_PATIENCE)
    except FailedError as error:
        raise DiagnosisError(error.message) from None
    for cause in diagnosis.causes:
        cause.commands[:] = [client.hinted(command) for command in cause.commands]
    if output == "table":
        for line in diagnosis_lines(diagnosis):
            say(line)
    else:
        show(diagnosis, output)
    return _CODES.get(diagnosis.verdict, 3)
