"""``agentctl doctor``: finds problems and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.console import say
from penstock.agent.ctl.errors import FailedError, RefusedError, UnknownCallError, UnreachableError
from penstock.agent.ctl.formats import with_output
from penstock.agent.ctl.options import with_client
from penstock.agent.ctl.output import say_document
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
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.agent.ctl.connection.client import Client

_COLOURS = {OK: "green", NOTE: "yellow", WRONG: "red"}
_ORDER = (OK, NOTE, WRONG)
_PATIENCE = 5.0
# To diagnose takes longer, by a relay above all.
_SEARCH_PATIENCE = 15.0


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
        for finding in sorted(found, key=lambda finding: _ORDER.index(finding.level)):
            _show(finding)
        say(text.count(bad, "problem") if bad else "no problems")
    else:
        findings = [finding._asdict() for finding in found]
        say_document({"healthy": not bad, "findings": findings}, output)
    return 1 if bad else 0


def _findings(client: Client) -> list[Finding]:
    try:
        asked = current_time()
        status = client.call("GetStatus", admin.GetStatusRequest(try_backend=True), timeout=_PATIENCE)
        answered = current_time()
        engines = client.call("ListEngines", admin.ListEnginesRequest(), timeout=_PATIENCE).engines
        drills = client.call("ListDrills", admin.ListDrillsRequest(), timeout=_PATIENCE).drills
        listed = client.call("ListQuarantines", admin.ListQuarantinesRequest(), timeout=_PATIENCE)
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
        return Judgement(client.call("Diagnose", admin.DiagnoseRequest(), timeout=_SEARCH_PATIENCE))
    except UnknownCallError:
        return Judgement(old=True)
    except FailedError as error:
        return Judgement(error=error.message)


def _policies(client: Client) -> Iterable[admin.Policy]:
    try:
        response = client.call("ListPolicies", admin.ListPoliciesRequest(), timeout=_PATIENCE)
    except FailedError:
        # Its policies cannot be read: the other checks stand.
        return ()
    policies: Iterable[admin.Policy] = response.policies
    return policies


def _rollouts(client: Client) -> Iterable[admin.PolicyRollout]:
    try:
        response = client.call("ListPolicyRollouts", admin.ListPolicyRolloutsRequest(), timeout=_PATIENCE)
    except FailedError:
        # An agent without roll-outs: an earlier version.
        return ()
    rollouts: Iterable[admin.PolicyRollout] = response.rollouts
    return rollouts


def _pairs(client: Client) -> Sequence[admin.Pair]:
    try:
        response = client.call("ListPairs", admin.ListPairsRequest(), timeout=_PATIENCE)
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
