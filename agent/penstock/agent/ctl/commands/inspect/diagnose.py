"""``agentctl diagnose`` and ``doctor``: what is wrong, and what to do."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.errors import FailedError, RefusedError, UnknownCallError, UnreachableError
from penstock.agent.ctl.moments import current_time, moment_at, moment_words, parse_moment
from penstock.agent.ctl.options import (
    DURATION,
    ENGINE,
    Parsed,
    duration_message,
    engine_selector,
    with_client,
    with_selector,
)
from penstock.agent.ctl.output import say_document, show
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.ctl.socket_probe import probe_address
from penstock.agent.views import text
from penstock.agent.views.checks import (
    AGENT,
    NOTE,
    OK,
    WRONG,
    Finding,
    Judgement,
    Orders,
    check_agent,
    check_causes,
    check_orders,
    check_pairs,
    check_relay,
    check_rollouts,
    count_problems,
)
from penstock.agent.views.diagnosis import diagnosis_lines
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.ctl.moments import Moment

_CODES = {
    admin.DIAGNOSIS_VERDICT_NOTHING_WRONG: 0,
    admin.DIAGNOSIS_VERDICT_CAUSES: 1,
    admin.DIAGNOSIS_VERDICT_CANNOT_TELL: 3,
}

_COLOURS = {OK: "green", NOTE: "yellow", WRONG: "red"}
_LEVELS = (OK, NOTE, WRONG)
_ANSWER_SECONDS = 5.0
# To diagnose takes longer, by a relay above all.
_DIAGNOSIS_SECONDS = 15.0


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
        diagnosis: admin.Diagnosis = client.call("Diagnose", request, timeout=_DIAGNOSIS_SECONDS)
    except FailedError as error:
        raise DiagnosisError(error.message) from None
    if request.HasField("at") and diagnosis.at != request.at:
        raise DiagnosisError("the agent does not know --at and has answered for now; upgrade it")
    return diagnosis


@click.command()
@with_output()
@with_client
def doctor(client: Client, output: str) -> int:
    """Check agent, engines, hooks, policy, clocks, losses, traces and disk; print problems and what to do.

    Incidents are those of 'agentctl diagnose'. Exits with 1 if there is a problem.
    """
    found = [item._replace(advice=client.hinted(item.advice)) for item in _findings(client)]
    bad = count_problems(found)
    if output == "table":
        # Problems come last, next to the prompt.
        for finding in sorted(found, key=lambda finding: _LEVELS.index(finding.level)):
            _show(finding)
        say(text.count(bad, "problem") if bad else "no problems")
    else:
        findings = [finding._asdict() for finding in found]
        say_document({"healthy": not bad, "findings": findings}, output)
    return 1 if bad else 0


def _findings(client: Client) -> list[Finding]:
    try:
        asked = current_time()
        status = client.call("GetStatus", admin.GetStatusRequest(try_backend=True), timeout=_ANSWER_SECONDS)
        answered = current_time()
        engines = client.call("ListEngines", admin.ListEnginesRequest(), timeout=_ANSWER_SECONDS).engines
        drills = client.call("ListDrills", admin.ListDrillsRequest(), timeout=_ANSWER_SECONDS).drills
        listed = client.call("ListQuarantines", admin.ListQuarantinesRequest(), timeout=_ANSWER_SECONDS)
    except UnreachableError as error:
        # The operating system knows more about the cause than gRPC.
        return [probe_address(client.address) or _answer(client.address, error)]
    except FailedError as error:
        return [_answer(client.address, error)]
    # The agent reads its clock at some moment of the call, which takes seconds where it tries its trace backend.
    now = min(max(status.now.ToNanoseconds() / 1e9, asked), answered)
    check = check_relay if status.agents else check_agent
    orders = Orders(drills, listed.quarantines)
    judgement = _judgement(client)
    return [
        *check(status, engines, now, judgement),
        *check_orders(orders, _policies(client), now, judgement.lasting()),
        *check_rollouts(_rollouts(client), now),
        *check_pairs(_pairs(client)),
        *check_causes(judgement, engines),
    ]


def _judgement(client: Client) -> Judgement:
    try:
        return Judgement(client.call("Diagnose", admin.DiagnoseRequest(), timeout=_DIAGNOSIS_SECONDS))
    except UnknownCallError:
        return Judgement(old=True)
    except FailedError as error:
        return Judgement(error=error.message)


def _policies(client: Client) -> Iterable[admin.Policy]:
    try:
        response = client.call("ListPolicies", admin.ListPoliciesRequest(), timeout=_ANSWER_SECONDS)
    except FailedError:
        # Its policies cannot be read: the other checks stand.
        return ()
    policies: Iterable[admin.Policy] = response.policies
    return policies


def _rollouts(client: Client) -> Iterable[admin.PolicyRollout]:
    try:
        response = client.call(
            "ListPolicyRollouts", admin.ListPolicyRolloutsRequest(), timeout=_ANSWER_SECONDS
        )
    except FailedError:
        # An agent without roll-outs: an earlier version.
        return ()
    rollouts: Iterable[admin.PolicyRollout] = response.rollouts
    return rollouts


def _pairs(client: Client) -> Sequence[admin.Pair]:
    try:
        response = client.call("ListPairs", admin.ListPairsRequest(), timeout=_ANSWER_SECONDS)
    except FailedError:
        # An agent of an earlier version.
        return ()
    pairs: Sequence[admin.Pair] = response.pairs
    return pairs


def _answer(address: str, error: FailedError) -> Finding:
    """Return the problem of an address that accepts connections but does not answer as an agent."""
    if isinstance(error, RefusedError):
        return Finding(WRONG, AGENT, error.message, "")
    # Over TCP, a refused certificate closes the connection.
    if isinstance(error, UnreachableError) and not address.startswith("unix:"):
        return Finding(
            WRONG,
            AGENT,
            error.message,
            "openssl x509 -noout -dates -subject -in FILE shows a certificate: check --tls-ca, --tls-cert and --tls-key here, "
            "and to the agent's --admin-tls-client-ca",
        )
    return Finding(
        WRONG,
        AGENT,
        f"{address} accepts connections but does not answer",
        "the agent hangs or is stopped: check its process and its log, then restart its container",
    )


def _show(finding: Finding) -> None:
    level = text.style(f"{finding.level:<5}", _COLOURS[finding.level])
    say(f"{level}  {finding.subject}: {finding.what}")
    if finding.advice and finding.level != OK:
        say(f"       → {finding.advice}")
