"""Checks of more than one engine: pairs, roll-outs, and the agents of a relay. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.views import text
from penstock.agent.views.checks.agent_checks import AGENT, check_agent
from penstock.agent.views.checks.cause_checks import NOT_ASKED, Judgement
from penstock.agent.views.checks.findings import NOTE, OK, WRONG, Finding
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


RELAY = "relay"


_SUBJECT = "pairs"

_ADVICE = {
    "undecided": "'agentctl rollout status {name}' shows the numbers; 'agentctl rollout promote {name}' or "
    "'agentctl rollout abort {name}' ends it",
    "paused": "'agentctl rollout resume {name}' goes on, 'agentctl rollout abort {name}' takes the policy back",
    "aborted": "correct policy {name} and start again, or 'agentctl delete policy {name}'; "
    "'agentctl rollout history {name}' has the steps",
}


def check_relay(
    status: admin.AgentStatus, engines: Sequence[admin.Engine], now: float, judgement: Judgement = NOT_ASKED
) -> list[Finding]:
    """Check the relay, who of its agents is missing, and each agent with its engines; *now*: this machine's clock."""
    answering = [each for each in status.agents if each.HasField("status")]
    said = f"{len(answering)} of {text.count(len(status.agents), 'agent')} answer"
    found = [
        Finding(
            OK,
            RELAY,
            f"penstock-relay {status.version} answers, started {text.ago_of(status.start_time, now)}",
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
                    f"does not answer at {each.address}, {each.state} since {text.ago_of(each.since, now)}: "
                    f"{text.one_line(each.error, 200) or 'it is being asked for the first time'}",
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


def check_pairs(pairs: Sequence[admin.Pair]) -> Iterator[Finding]:
    """Yield one finding for those that are compatible, and one for those that mix roll-outs."""
    good = sum(pair.compatible == admin.PAIR_COMPATIBILITY_YES for pair in pairs)
    if good:
        yield Finding(OK, _SUBJECT, f"{good} of {text.count(len(pairs), 'pair')} known to be compatible")
    mixed = [pair for pair in pairs if any(each.fact == "revision" for each in pair.differences)]
    if mixed:
        words = sorted({word for pair in mixed for word in (pair.revision, pair.peer_revision)})
        yield Finding(
            NOTE,
            _SUBJECT,
            f"{text.count(len(mixed), 'pair')} of {len(pairs)} mix roll-outs: {', '.join(words)}",
            "a roll-out under way needs no action; one that has stopped is to be finished or undone",
        )


def check_rollouts(rollouts: Iterable[admin.PolicyRollout], now: float) -> Iterator[Finding]:
    """Check what became of *rollouts*; *now*: seconds since the epoch."""
    for each in rollouts:
        subject, message = f"rollout {each.name}", text.one_line(each.message, 300)
        if each.state == "progressing":
            yield Finding(OK, subject, message)
        elif each.state == "undecided":
            over = text.ago_of(each.step_ends, now)
            yield Finding(
                NOTE,
                subject,
                f"its hold ended {over}: {message}",
                _ADVICE["undecided"].format(name=each.name),
            )
        elif each.state in _ADVICE:
            yield Finding(NOTE, subject, message, _ADVICE[each.state].format(name=each.name))
