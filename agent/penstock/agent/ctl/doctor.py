"""``agentctl doctor``: is everything in place, and if not, what is to be done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl import words
from penstock.agent.ctl.diagnosis import AGENT, examine
from penstock.agent.ctl.failure import AwayError, FailedError
from penstock.agent.ctl.findings import NOTE, OK, WRONG, Finding, wrong
from penstock.agent.ctl.options import with_client, with_output
from penstock.agent.ctl.output import dump
from penstock.agent.ctl.reach import why
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.client import Client

_COLOURS = {OK: "green", NOTE: "yellow", WRONG: "red"}
_ORDER = (OK, NOTE, WRONG)
_PATIENCE = 5.0


@click.command()
@with_output()
@with_client
def doctor(client: Client, output: str) -> int:
    """Look at agent, engines, hooks, policy, clocks, losses, traces and disk; say what is wrong and what to do.

    Exits with 1 if something is wrong.
    """
    found = _look(client)
    bad = wrong(found)
    if output == "table":
        # What is wrong stands last, above the prompt.
        for finding in sorted(found, key=lambda finding: _ORDER.index(finding.level)):
            _show(finding)
        click.echo(f"{bad} of {len(found)} things are wrong" if bad else "nothing is wrong")
    else:
        findings = [finding._asdict() for finding in found]
        click.echo(dump({"healthy": not bad, "findings": findings}, output))
    return 1 if bad else 0


def _look(client: Client) -> list[Finding]:
    try:
        status = client.call("GetStatus", admin.GetStatusRequest(), timeout=_PATIENCE)
        engines = client.call("ListEngines", admin.ListEnginesRequest(), timeout=_PATIENCE).engines
    except AwayError as error:
        # What the system says about the way there is more than what the call can know.
        return [why(client.address) or _stranger(client.address, error.message)]
    except FailedError as error:
        return [_stranger(client.address, error.message)]
    return examine(status, engines, time.time())


def _stranger(address: str, message: str) -> Finding:
    """Something listens there and does not answer as an agent does."""
    if address.startswith("unix:"):
        advice = (
            "is it the admin socket, not the engines' one? then the agent hangs: read its log, restart it"
        )
    else:
        advice = (
            "see to --tls-ca, --tls-cert and --tls-key, and to the names that the agent's --admin-allow lists"
        )
    return Finding(
        WRONG, AGENT, f"something listens at {address}, but does not answer this: {message}", advice
    )


def _show(finding: Finding) -> None:
    level = click.style(f"{finding.level:<5}", fg=_COLOURS[finding.level])
    click.echo(words.printable(f"{level}  {finding.subject}: {finding.what}"))
    if finding.advice and finding.level != OK:
        click.echo(words.printable(f"       → {finding.advice}"))
