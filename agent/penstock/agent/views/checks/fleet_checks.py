"""Checks of a relay's status: its agents, and what each of them says. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.views import text as words
from penstock.agent.views.checks.agent_checks import AGENT, check_agent
from penstock.agent.views.checks.cause_checks import NOT_ASKED, Judgement
from penstock.agent.views.checks.findings import OK, WRONG, Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.proto.v1 import admin_pb2 as admin

RELAY = "relay"


def check_relay(
    status: admin.AgentStatus, engines: Sequence[admin.Engine], now: float, judgement: Judgement = NOT_ASKED
) -> list[Finding]:
    """Check the relay, who of its agents is missing, and each agent with its engines; *now*: this machine's clock."""
    answering = [each for each in status.agents if each.HasField("status")]
    said = f"{len(answering)} of {words.count(len(status.agents), 'agent')} answer"
    found = [
        Finding(
            OK,
            RELAY,
            f"penstock-relay {status.version} answers, started {words.ago_of(status.start_time, now)}",
        ),
        Finding(OK if len(answering) == len(status.agents) else WRONG, RELAY, said),
    ]
    for each in status.agents:
        subject = f"{AGENT} {each.name}"
        if not each.HasField("status"):
            found.append(
                Finding(
                    WRONG,
                    subject,
                    f"does not answer at {each.address}, {each.state} since {words.ago_of(each.since, now)}: "
                    f"{words.one_line(each.error, 200) or 'it is being asked for the first time'}",
                    "what its engines do is not shown: check its pod, then its address and certificates in the relay's flags",
                )
            )
            continue
        own = [engine for engine in engines if engine.key.server.partition("/")[0] == each.name]
        found += [
            item._replace(subject=subject) if item.subject == AGENT else item
            for item in check_agent(each.status, own, now, judgement)
        ]
    return found
