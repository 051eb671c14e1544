"""``agentctl diagnose``: what is wrong, the most harmful first."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.console import say
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.formats import with_output
from penstock.agent.ctl.moments import moment_at, moment_words, parse_moment
from penstock.agent.ctl.name_arguments import ENGINE
from penstock.agent.ctl.options import (
    DURATION,
    Parsed,
    duration_message,
    engine_selector,
    with_client,
    with_selector,
)
from penstock.agent.ctl.output import show
from penstock.agent.views.diagnosis import diagnosis_lines
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.ctl.moments import Moment

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
@click.option("--since", type=DURATION, help="Window to diagnose, up to now or --at.  [default: 10m]")
@click.option("--baseline", type=DURATION, help="Window before it to compare with.  [default: 1h]")
@click.option(
    "--at",
    "moment",
    type=Parsed("TIME", parse_moment),
    help="Diagnose as of 21:43 or 2026-11-28T21:43:10Z, or 10m ago, from the log. Local time without a zone.",
)
@with_output()
@with_client
def diagnose(
    client: Client,
    engines: tuple[object, ...],
    selector: str,
    since: timedelta | None,
    baseline: timedelta | None,
    moment: Moment | None,
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
    if moment is not None:
        _set_moment(request, moment)
    diagnosis = _ask(client, request)
    for cause in diagnosis.causes:
        cause.commands[:] = [client.hinted(command) for command in cause.commands]
    if output == "table":
        if request.HasField("at"):
            diagnosis.sentence = f"as of {moment_words(diagnosis.at.ToDatetime(UTC))}: {diagnosis.sentence}"
        for line in diagnosis_lines(diagnosis):
            say(line)
    else:
        show(diagnosis, output)
    return _CODES.get(diagnosis.verdict, 3)


def _set_moment(request: admin.DiagnoseRequest, moment: Moment) -> None:
    try:
        request.at.FromDatetime(moment_at(moment, current_time()))
    except (OverflowError, ValueError):
        raise click.BadParameter("it is before all times", param_hint="--at") from None


def _ask(client: Client, request: admin.DiagnoseRequest) -> admin.Diagnosis:
    """Return the answer.

    Raises:
        DiagnosisError: there is none, or one of another moment.

    """
    try:
        diagnosis: admin.Diagnosis = client.call("Diagnose", request, timeout=_PATIENCE)
    except FailedError as error:
        raise DiagnosisError(error.message) from None
    if request.HasField("at") and diagnosis.at != request.at:
        raise DiagnosisError("the agent does not know --at and has answered for now; upgrade it")
    return diagnosis
